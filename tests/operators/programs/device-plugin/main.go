// A device plugin for the suite of device plugins, and a client of the pod resources API.
//
//	device-plugin run DIRECTORY SOCKET RESOURCE FILE
//	device-plugin announce SOCKET RESOURCE FILE
//	device-plugin list SOCKET
//
// The first form serves the devices of FILE (one per line: id and health) at SOCKET in DIRECTORY
// and registers there, again whenever the kubelet's socket is created. It follows the file. Each
// registration and each call is a line of its output. The second form serves the registration of
// plugins, too, for a SOCKET in the kubelet's registry of plugins.
package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// How often files are looked at.
const pause = 100 * time.Millisecond

// dial sends the path of the socket as :authority, as plugins with a dialer of their own do.
func dial(path string) *grpc.ClientConn {
	dialer := func(ctx context.Context, path string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	}
	connection, err := grpc.NewClient("passthrough:///"+path,
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithContextDialer(dialer))
	if err != nil {
		panic(err)
	}
	return connection
}

type plugin struct {
	api.UnimplementedDevicePluginServer
	file string
}

func (p *plugin) devices() (string, []*api.Device) {
	text, err := os.ReadFile(p.file)
	if err != nil {
		panic(err)
	}
	var devices []*api.Device
	for _, line := range strings.Split(strings.TrimSpace(string(text)), "\n") {
		id, health, _ := strings.Cut(line, " ")
		devices = append(devices, &api.Device{ID: id, Health: health})
	}
	return string(text), devices
}

func (p *plugin) GetDevicePluginOptions(context.Context, *api.Empty) (*api.DevicePluginOptions, error) {
	return &api.DevicePluginOptions{PreStartRequired: true}, nil
}

func (p *plugin) ListAndWatch(_ *api.Empty, stream grpc.ServerStreamingServer[api.ListAndWatchResponse]) error {
	sent := ""
	for stream.Context().Err() == nil {
		if text, devices := p.devices(); text != sent {
			if err := stream.Send(&api.ListAndWatchResponse{Devices: devices}); err != nil {
				return err
			}
			sent = text
		}
		time.Sleep(pause)
	}
	return nil
}

func (p *plugin) Allocate(_ context.Context, request *api.AllocateRequest) (*api.AllocateResponse, error) {
	response := &api.AllocateResponse{}
	for _, container := range request.ContainerRequests {
		sort.Strings(container.DevicesIds)
		ids := strings.Join(container.DevicesIds, ",")
		fmt.Println("allocate", ids)
		response.ContainerResponses = append(response.ContainerResponses, &api.ContainerAllocateResponse{
			Envs:        map[string]string{"DEVICES": ids},
			Devices:     []*api.DeviceSpec{{ContainerPath: "/dev/of-plugin", HostPath: "/dev/zero", Permissions: "rw"}},
			Mounts:      []*api.Mount{{ContainerPath: "/of-plugin", HostPath: filepath.Dir(p.file), ReadOnly: true}},
			Annotations: map[string]string{"example.com/devices": ids},
		})
	}
	return response, nil
}

func (p *plugin) PreStartContainer(_ context.Context, request *api.PreStartContainerRequest) (*api.PreStartContainerResponse, error) {
	sort.Strings(request.DevicesIds)
	fmt.Println("prepare", strings.Join(request.DevicesIds, ","))
	return &api.PreStartContainerResponse{}, nil
}

func register(kubelet, endpoint, resource string) error {
	connection := dial(kubelet)
	defer connection.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	_, err := api.NewRegistrationClient(connection).Register(ctx, &api.RegisterRequest{
		Version: api.Version, Endpoint: endpoint, ResourceName: resource,
	})
	return err
}

func listen(socket string) net.Listener {
	os.Remove(socket)
	listener, err := net.Listen("unix", socket)
	if err != nil {
		panic(err)
	}
	return listener
}

// announced is a plugin that the kubelet finds by its socket.
type announced struct {
	registration.UnimplementedRegistrationServer
	resource string
}

func (a *announced) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{
		Type: registration.DevicePlugin, Name: a.resource, SupportedVersions: []string{api.Version},
	}, nil
}

func (a *announced) NotifyRegistrationStatus(_ context.Context, status *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	if status.PluginRegistered {
		fmt.Println("registered")
	} else {
		fmt.Println("refused:", status.Error)
	}
	return &registration.RegistrationStatusResponse{}, nil
}

func announce(socket, resource, file string) {
	server := grpc.NewServer()
	api.RegisterDevicePluginServer(server, &plugin{file: file})
	registration.RegisterRegistrationServer(server, &announced{resource: resource})
	if err := server.Serve(listen(socket)); err != nil {
		panic(err)
	}
}

func run(directory, endpoint, resource, file string) {
	kubelet := filepath.Join(directory, "kubelet.sock")
	var known os.FileInfo
	var server *grpc.Server
	for ; ; time.Sleep(pause) {
		now, err := os.Stat(kubelet)
		if err != nil || known != nil && os.SameFile(known, now) {
			continue
		}
		// The kubelet removes all sockets when it starts.
		if server != nil {
			server.Stop()
		}
		server = grpc.NewServer()
		api.RegisterDevicePluginServer(server, &plugin{file: file})
		go server.Serve(listen(filepath.Join(directory, endpoint)))
		if err := register(kubelet, endpoint, resource); err != nil {
			// Before the kubelet listens there is no answer.
			if status.Code(err).String() == "Unavailable" {
				continue
			}
			fmt.Println("refused:", status.Convert(err).Message())
		} else {
			fmt.Println("registered")
		}
		known = now
	}
}

// list prints a line per container with devices: pod, container, resource=ids.
func list(socket string) error {
	connection := dial(socket)
	defer connection.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	answer, err := podresources.NewPodResourcesListerClient(connection).List(ctx, &podresources.ListPodResourcesRequest{})
	if err != nil {
		return err
	}
	for _, pod := range answer.PodResources {
		for _, container := range pod.Containers {
			var devices []string
			for _, device := range container.Devices {
				devices = append(devices, device.ResourceName+"="+strings.Join(device.DeviceIds, ","))
			}
			sort.Strings(devices)
			if len(devices) > 0 {
				fmt.Println(pod.Name, container.Name, strings.Join(devices, " "))
			}
		}
	}
	return nil
}

func main() {
	if len(os.Args) == 6 && os.Args[1] == "run" {
		run(os.Args[2], os.Args[3], os.Args[4], os.Args[5])
	}
	if len(os.Args) == 5 && os.Args[1] == "announce" {
		announce(os.Args[2], os.Args[3], os.Args[4])
	}
	if len(os.Args) == 3 && os.Args[1] == "list" {
		if err := list(os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	fmt.Fprintln(os.Stderr, "usage: device-plugin run DIRECTORY SOCKET RESOURCE FILE | announce SOCKET RESOURCE FILE | list SOCKET")
	os.Exit(2)
}
