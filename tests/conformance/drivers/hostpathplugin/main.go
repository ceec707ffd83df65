// The program of the image hostpathplugin, which the specs of CSI's mock driver and of dynamic
// resource allocation deploy: it takes the place of csi-driver-host-path, whose module cannot be
// had. With -proxy-endpoint it forwards the clients of a socket to the spec, whose process serves
// them (proxy.go). Without, it is a CSI driver that mounts nothing and logs its calls in the form
// that the specs read: upstream's own mock service, which the specs' process serves through the
// proxy, too, with what the specs need beyond it (node.go).
package main

import (
	"context"
	"flag"
	"net"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"k8s.io/klog/v2"
	"k8s.io/kubernetes/test/e2e/storage/drivers/csi-test/driver"
	"k8s.io/kubernetes/test/e2e/storage/drivers/csi-test/mock/service"
)

var (
	endpoint   = flag.String("endpoint", "/csi/csi.sock", "socket to listen on")
	proxy      = flag.String("proxy-endpoint", "", "tcp://ADDRESS:PORT: forward the socket there")
	name       = flag.String("drivername", "hostpath.csi.k8s.io", "name of the driver")
	attach     = flag.Bool("enable-attach", false, "volumes are attached")
	topology   = flag.Bool("enable-topology", false, "volumes and the node have a topology")
	limit      = flag.Int64("attach-limit", 0, "volumes per node, 0: no limit")
	nodeExpand = flag.Bool("node-expand-required", false, "the node expands volumes, too")
	// The manifests of the specs pass these; the mock service has no use for them.
	_ = flag.String("nodeid", "", "accepted: the node has the name of the driver")
	_ = flag.String("statedir", "", "accepted: volumes are in memory")
)

func main() {
	klog.InitFlags(nil)
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	listener, err := listenOn(*endpoint)
	if err != nil {
		klog.Fatal(err)
	}
	if *proxy != "" {
		err = forward(ctx, listener, strings.TrimPrefix(*proxy, "tcp://"))
	} else {
		err = serve(ctx, listener)
	}
	if err != nil {
		klog.Fatal(err)
	}
}

// listenOn removes the socket of an earlier process, which ended without doing so.
func listenOn(endpoint string) (net.Listener, error) {
	path := strings.TrimPrefix(endpoint, "unix://")
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	return net.Listen("unix", path)
}

// serve answers calls of CSI until the context ends.
func serve(ctx context.Context, listener net.Listener) error {
	mock := service.New(service.Config{DriverName: *name, DisableAttach: !*attach,
		AttachLimit: *limit, NodeExpansionRequired: *nodeExpand, EnableTopology: *topology})
	node := &nodeService{Service: mock, inline: map[string]bool{}}
	server := driver.NewCSIDriver(
		&driver.CSIDriverServers{Controller: mock, Identity: mock, Node: node})
	// Without an interceptor the driver logs each call.
	if err := server.Start(listener, nil); err != nil {
		return err
	}
	<-ctx.Done()
	server.Stop()
	return nil
}
