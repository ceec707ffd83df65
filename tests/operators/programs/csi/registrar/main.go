// Registers a CSI driver with the kubelet: it takes the place of node-driver-registrar, whose module
// cannot be had, and has its socket (DRIVER-reg.sock), its answers and its flags: the kubelet finds
// the socket, asks for the driver's name and socket, and reports whether the driver is registered.
// It ends with status 1 if it is not, and removes the socket at SIGTERM. /healthz of -http-endpoint
// answers 200 while the socket exists.
package main

import (
	"context"
	"flag"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

var (
	driver = flag.String("csi-address", "/csi/csi.sock", "socket of the driver in this container")
	socket = flag.String("kubelet-registration-path", "", "socket of the driver on the machine")
	folder = flag.String("plugin-registration-path", "/registration", "folder of the kubelet")
	limit  = flag.Duration("timeout", 30*time.Second, "time in which the driver has to answer")
	health = flag.String("http-endpoint", "", "address of /healthz")
	_      = flag.Int("v", 0, "accepted: the log has one level")
)

type registrar struct {
	registration.UnimplementedRegistrationServer
	name string
}

func (r *registrar) GetInfo(context.Context, *registration.InfoRequest) (
	*registration.PluginInfo, error) {
	return &registration.PluginInfo{Type: registration.CSIPlugin, Name: r.name, Endpoint: *socket,
		SupportedVersions: []string{"1.0.0"}}, nil
}

func (*registrar) NotifyRegistrationStatus(_ context.Context, s *registration.RegistrationStatus) (
	*registration.RegistrationStatusResponse, error) {
	log.Printf("registered: %v %s", s.GetPluginRegistered(), s.GetError())
	if !s.GetPluginRegistered() {
		os.Exit(1)
	}
	return &registration.RegistrationStatusResponse{}, nil
}

// driverName waits for the driver, which starts at the same time.
func driverName() (string, error) {
	connection, err := grpc.NewClient("unix://"+strings.TrimPrefix(*driver, "unix://"),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return "", err
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(context.Background(), *limit)
	defer cancel()
	info, err := csi.NewIdentityClient(connection).GetPluginInfo(ctx, &csi.GetPluginInfoRequest{},
		grpc.WaitForReady(true))
	return info.GetName(), err
}

func main() {
	flag.Parse()
	name, err := driverName()
	if err != nil {
		log.Fatal(err)
	}
	path := filepath.Join(*folder, name+"-reg.sock")
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		log.Fatal(err)
	}
	mask := syscall.Umask(0o077)
	listener, err := net.Listen("unix", path)
	syscall.Umask(mask)
	if err != nil {
		log.Fatal(err)
	}
	if *health != "" {
		http.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) {
			if _, err := os.Stat(path); err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
			}
		})
		go func() { log.Fatal(http.ListenAndServe(*health, nil)) }()
	}
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGTERM)
	go func() {
		<-end
		os.Remove(path)
		os.Exit(0)
	}()
	server := grpc.NewServer()
	registration.RegisterRegistrationServer(server, &registrar{name: name})
	log.Fatal(server.Serve(listener))
}
