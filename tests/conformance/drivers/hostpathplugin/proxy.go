package main

import (
	"context"
	"io"
	"net"

	"k8s.io/klog/v2"
)

// forward joins each client of the socket with one connection to the TCP address until the context
// ends. The spec opens these connections in advance, by forwarding the pod's port, and serves gRPC
// on them (test/e2e/storage/drivers/proxy of Kubernetes).
func forward(ctx context.Context, clients net.Listener, address string) error {
	servers, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, func() {
		clients.Close()
		servers.Close()
	})
	for {
		client, err := clients.Accept()
		if err != nil {
			return unlessEnded(ctx, err)
		}
		klog.V(3).Info("a client has connected")
		server, err := servers.Accept()
		if err != nil {
			return unlessEnded(ctx, err)
		}
		klog.V(3).Info("a client is joined with a connection of the spec")
		go join(client, server)
		go join(server, client)
	}
}

func unlessEnded(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// join copies one direction; its end is the end of both.
func join(to, from net.Conn) {
	if _, err := io.Copy(to, from); err != nil {
		klog.V(5).Infof("a connection ended: %v", err)
	}
	to.Close()
	from.Close()
}
