package main

import (
	"context"
	"os"
	"sync"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/kubernetes/test/e2e/storage/drivers/csi-test/mock/service"
)

// nodeService is the mock service with two abilities of csi-driver-host-path that it lacks: volumes
// of the pod's specification, and volumes that the node stages without an attachment, because the
// CSIDriver object no longer requires it.
type nodeService struct {
	service.Service
	lock sync.Mutex
	// Target paths of the volumes of pods' specifications.
	inline map[string]bool
}

func (n *nodeService) NodeStageVolume(ctx context.Context, r *csi.NodeStageVolumeRequest) (
	*csi.NodeStageVolumeResponse, error) {
	r.PublishContext = withDevice(r.PublishContext)
	return n.Service.NodeStageVolume(ctx, r)
}

func (n *nodeService) NodePublishVolume(ctx context.Context, r *csi.NodePublishVolumeRequest) (
	*csi.NodePublishVolumeResponse, error) {
	if r.GetVolumeContext()["csi.storage.k8s.io/ephemeral"] != "true" {
		r.PublishContext = withDevice(r.PublishContext)
		return n.Service.NodePublishVolume(ctx, r)
	}
	if err := os.MkdirAll(r.GetTargetPath(), 0o755); err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	n.lock.Lock()
	defer n.lock.Unlock()
	n.inline[r.GetTargetPath()] = true
	return &csi.NodePublishVolumeResponse{}, nil
}

func (n *nodeService) NodeUnpublishVolume(ctx context.Context, r *csi.NodeUnpublishVolumeRequest) (
	*csi.NodeUnpublishVolumeResponse, error) {
	n.lock.Lock()
	defer n.lock.Unlock()
	if !n.inline[r.GetTargetPath()] {
		return n.Service.NodeUnpublishVolume(ctx, r)
	}
	if err := os.RemoveAll(r.GetTargetPath()); err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	delete(n.inline, r.GetTargetPath())
	return &csi.NodeUnpublishVolumeResponse{}, nil
}

// withDevice adds what the mock service's own attachment adds.
func withDevice(published map[string]string) map[string]string {
	if published["device"] != "" {
		return published
	}
	with := map[string]string{"device": "not attached"}
	for key, value := range published {
		with[key] = value
	}
	return with
}
