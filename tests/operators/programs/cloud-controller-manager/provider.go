package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sort"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	cloudprovider "k8s.io/cloud-provider"
)

const providerName = "memory"

// The provider implements the interfaces of k8s.io/cloud-provider by requests to the cloud.
type provider struct {
	url    string
	client http.Client
}

func newProvider(file io.Reader) (cloudprovider.Interface, error) {
	if file == nil {
		return nil, fmt.Errorf("--cloud-config is missing")
	}
	url, err := io.ReadAll(file)
	return &provider{strings.TrimSpace(string(url)), http.Client{Timeout: 10 * time.Second}}, err
}

func (p *provider) Initialize(cloudprovider.ControllerClientBuilder, <-chan struct{}) {}
func (p *provider) LoadBalancer() (cloudprovider.LoadBalancer, bool)                  { return p, true }
func (p *provider) Instances() (cloudprovider.Instances, bool)                        { return nil, false }
func (p *provider) InstancesV2() (cloudprovider.InstancesV2, bool)                    { return p, true }
func (p *provider) Zones() (cloudprovider.Zones, bool)                                { return nil, false }
func (p *provider) Clusters() (cloudprovider.Clusters, bool)                          { return nil, false }
func (p *provider) Routes() (cloudprovider.Routes, bool)                              { return p, true }
func (p *provider) ProviderName() string                                              { return providerName }
func (p *provider) HasClusterID() bool                                                { return true }

// request sends a request and decodes the answer, unless it is not wanted.
func (p *provider) request(ctx context.Context, method, path string, body, answer any) error {
	content, err := json.Marshal(body)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, method, p.url+path, bytes.NewReader(content))
	if err != nil {
		return err
	}
	response, err := p.client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s %s: %s", method, path, response.Status)
	}
	if answer == nil {
		return nil
	}
	return json.NewDecoder(response.Body).Decode(answer)
}

func (p *provider) inventory(ctx context.Context) (all inventory, err error) {
	err = p.request(ctx, http.MethodGet, "/", nil, &all)
	return
}

// find returns the instance of a node: by its provider id, or, before it has one, by its name.
func (p *provider) find(ctx context.Context, node *v1.Node) (*instance, error) {
	all, err := p.inventory(ctx)
	if err != nil {
		return nil, err
	}
	for name, found := range all.Instances {
		if node.Spec.ProviderID == providerID(found) ||
			node.Spec.ProviderID == "" && name == node.Name {
			return &found, nil
		}
	}
	return nil, nil
}

func providerID(i instance) string { return providerName + "://" + i.ID }

func (p *provider) InstanceExists(ctx context.Context, node *v1.Node) (bool, error) {
	found, err := p.find(ctx, node)
	return found != nil, err
}

func (p *provider) InstanceShutdown(ctx context.Context, node *v1.Node) (bool, error) {
	found, err := p.find(ctx, node)
	return found != nil && found.Stopped, err
}

func (p *provider) InstanceMetadata(
	ctx context.Context, node *v1.Node,
) (*cloudprovider.InstanceMetadata, error) {
	found, err := p.find(ctx, node)
	if err != nil {
		return nil, err
	}
	if found == nil {
		return nil, cloudprovider.InstanceNotFound
	}
	metadata := cloudprovider.InstanceMetadata{
		ProviderID:       providerID(*found),
		InstanceType:     found.Type,
		Zone:             found.Zone,
		Region:           found.Region,
		AdditionalLabels: found.Labels,
	}
	for _, a := range found.Addresses {
		metadata.NodeAddresses = append(metadata.NodeAddresses,
			v1.NodeAddress{Type: v1.NodeAddressType(a.Type), Address: a.Address})
	}
	return &metadata, nil
}

func status(b balancer) *v1.LoadBalancerStatus {
	mode := v1.LoadBalancerIPModeVIP
	return &v1.LoadBalancerStatus{
		Ingress: []v1.LoadBalancerIngress{{IP: b.Address, IPMode: &mode}},
	}
}

func (p *provider) GetLoadBalancerName(_ context.Context, _ string, service *v1.Service) string {
	return cloudprovider.DefaultLoadBalancerName(service)
}

func (p *provider) GetLoadBalancer(
	ctx context.Context, cluster string, service *v1.Service,
) (*v1.LoadBalancerStatus, bool, error) {
	all, err := p.inventory(ctx)
	if err != nil {
		return nil, false, err
	}
	found, exists := all.Balancers[p.GetLoadBalancerName(ctx, cluster, service)]
	return status(found), exists, nil
}

func (p *provider) EnsureLoadBalancer(
	ctx context.Context, cluster string, service *v1.Service, nodes []*v1.Node,
) (*v1.LoadBalancerStatus, error) {
	b := balancer{Service: service.Namespace + "/" + service.Name, Ports: map[string]int{}}
	for _, node := range nodes {
		b.Nodes = append(b.Nodes, node.Name)
	}
	sort.Strings(b.Nodes)
	for _, port := range service.Spec.Ports {
		b.Ports[fmt.Sprintf("%s/%d", port.Protocol, port.Port)] = int(port.NodePort)
	}
	path := "/balancers/" + p.GetLoadBalancerName(ctx, cluster, service)
	err := p.request(ctx, http.MethodPut, path, b, &b)
	return status(b), err
}

func (p *provider) UpdateLoadBalancer(
	ctx context.Context, cluster string, service *v1.Service, nodes []*v1.Node,
) error {
	_, err := p.EnsureLoadBalancer(ctx, cluster, service, nodes)
	return err
}

func (p *provider) EnsureLoadBalancerDeleted(
	ctx context.Context, cluster string, service *v1.Service,
) error {
	path := "/balancers/" + p.GetLoadBalancerName(ctx, cluster, service)
	return p.request(ctx, http.MethodDelete, path, nil, nil)
}

func (p *provider) ListRoutes(ctx context.Context, _ string) ([]*cloudprovider.Route, error) {
	all, err := p.inventory(ctx)
	var routes []*cloudprovider.Route
	for name, r := range all.Routes {
		routes = append(routes, &cloudprovider.Route{
			Name: name, TargetNode: types.NodeName(r.Node), DestinationCIDR: r.CIDR,
		})
	}
	return routes, err
}

func (p *provider) CreateRoute(
	ctx context.Context, _, hint string, r *cloudprovider.Route,
) error {
	// The hint is the same for all addresses of a node.
	path := "/routes/" + hint + "-" + strings.ReplaceAll(r.DestinationCIDR, "/", "-")
	return p.request(ctx, http.MethodPut, path, route{string(r.TargetNode), r.DestinationCIDR}, nil)
}

func (p *provider) DeleteRoute(ctx context.Context, _ string, r *cloudprovider.Route) error {
	return p.request(ctx, http.MethodDelete, "/routes/"+r.Name, nil, nil)
}
