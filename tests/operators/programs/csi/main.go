// A CSI driver for tests: its volumes are files in a folder that all machines share, attached as
// loop devices, with ext4 or as block devices. It takes the place of csi-driver-host-path, whose
// module cannot be had, and is stricter: a volume has to be attached before it is staged, staged
// before it is published, and no longer published before it is unstaged; paths that the kubelet has
// to create must exist. csi-sanity 5.6 passes. With -inline the driver serves volumes of the pod's
// specification instead (inline.go).
//
// Below the folder, `calls` has one line per call (node, method, volume, gRPC code, names of the
// secrets), and a file `faults/METHOD` makes calls of that method fail ("CODE message") or wait
// while it exists ("hold", with a line of the code Held at the start).
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

var (
	endpoint = flag.String("endpoint", "unix:///csi/csi.sock", "socket of the driver")
	name     = flag.String("name", "loop.csi.example.com", "name of the driver")
	node     = flag.String("node-id", "", "name of this machine in the storage system")
	folder   = flag.String("storage", "/storage", "folder that all machines share")
	zone     = flag.String("zone", "", "topology segment of this machine")
	limit    = flag.Int64("max-volumes", 0, "volumes per node, 0: no limit")
	inline   = flag.Bool("inline", false, "serve volumes of the pod's specification")
)

func main() {
	flag.Parse()
	if *node == "" {
		log.Fatal("-node-id is missing")
	}
	for _, path := range []string{"volumes", "snapshots", "nodes/" + *node, "faults"} {
		if err := os.MkdirAll(filepath.Join(*folder, path), 0o755); err != nil {
			log.Fatal(err)
		}
	}
	socket := strings.TrimPrefix(*endpoint, "unix://")
	if err := os.Remove(socket); err != nil && !os.IsNotExist(err) {
		log.Fatal(err)
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(intercept))
	csi.RegisterIdentityServer(server, &identity{})
	if *inline {
		csi.RegisterNodeServer(server, &inlineNode{})
	} else {
		csi.RegisterControllerServer(server, &controller{})
		csi.RegisterNodeServer(server, &loopNode{})
	}
	log.Fatal(server.Serve(listener))
}

// intercept applies the fault of a method and records the call.
func intercept(ctx context.Context, request any, info *grpc.UnaryServerInfo,
	handler grpc.UnaryHandler) (any, error) {
	method := info.FullMethod[strings.LastIndex(info.FullMethod, "/")+1:]
	response, err := any(nil), fault(ctx, method, request)
	if err == nil {
		response, err = handler(ctx, request)
	}
	if err != nil {
		log.Printf("%s: %v", method, err)
	}
	record(method, request, status.Code(err).String())
	return response, err
}

// fault is the error that the file of the method asks for; it waits while the file says "hold".
func fault(ctx context.Context, method string, request any) error {
	path := filepath.Join(*folder, "faults", method)
	for held := false; ; held = true {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil
		}
		code, message, _ := strings.Cut(strings.TrimSpace(string(text)), " ")
		if code != "hold" {
			var parsed codes.Code
			if err := parsed.UnmarshalJSON([]byte(`"` + code + `"`)); err != nil {
				return status.Errorf(codes.Unknown, "%s: %v", path, err)
			}
			return status.Error(parsed, message)
		}
		if !held {
			record(method, request, "Held")
		}
		select {
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// record appends a line to `calls`: one write, so that lines of several machines do not mix.
func record(method string, request any, code string) {
	line := []string{*node, method, "-", code}
	if r, ok := request.(interface{ GetVolumeId() string }); ok {
		line[2] = r.GetVolumeId()
	}
	if r, ok := request.(interface{ GetSecrets() map[string]string }); ok {
		line = append(line, sortedKeys(r.GetSecrets())...)
	}
	file, err := os.OpenFile(filepath.Join(*folder, "calls"),
		os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		log.Print(err)
		return
	}
	defer file.Close()
	fmt.Fprintln(file, strings.Join(line, " "))
}

func sortedKeys(values map[string]string) []string {
	keys := make([]string, 0, len(values))
	for key := range values {
		keys = append(keys, key)
	}
	sort.Strings(keys)
	return keys
}

type identity struct {
	csi.UnimplementedIdentityServer
}

func (*identity) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (
	*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: *name, VendorVersion: "1.0.0"}, nil
}

func (*identity) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{}, nil
}

func (*identity) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (
	*csi.GetPluginCapabilitiesResponse, error) {
	response := &csi.GetPluginCapabilitiesResponse{}
	if *inline {
		return response, nil
	}
	for _, service := range []csi.PluginCapability_Service_Type{
		csi.PluginCapability_Service_CONTROLLER_SERVICE,
		csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS,
	} {
		response.Capabilities = append(response.Capabilities, &csi.PluginCapability{
			Type: &csi.PluginCapability_Service_{
				Service: &csi.PluginCapability_Service{Type: service}}})
	}
	response.Capabilities = append(response.Capabilities, &csi.PluginCapability{
		Type: &csi.PluginCapability_VolumeExpansion_{VolumeExpansion: &csi.PluginCapability_VolumeExpansion{
			Type: csi.PluginCapability_VolumeExpansion_ONLINE}}})
	return response, nil
}

// topology is the segment of this machine; its key belongs to the driver.
func topology() *csi.Topology {
	if *zone == "" {
		return nil
	}
	return &csi.Topology{Segments: map[string]string{"topology." + *name + "/zone": *zone}}
}
