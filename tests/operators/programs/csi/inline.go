package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// inlineNode serves volumes of the pod's specification, as drivers of secrets and certificates do:
// file systems in memory, neither attached nor staged, with a file for each attribute and each secret
// (`secret.NAME`; `/` of a name is `_`), and the number of times that the volume was published.
type inlineNode struct {
	csi.UnimplementedNodeServer
	// one call at a time
	mutex sync.Mutex
}

func (*inlineNode) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (
	*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: *node}, nil
}

func (*inlineNode) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (
	*csi.NodeGetCapabilitiesResponse, error) {
	return nodeCapabilities(csi.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP), nil
}

func (n *inlineNode) NodePublishVolume(_ context.Context, r *csi.NodePublishVolumeRequest) (
	*csi.NodePublishVolumeResponse, error) {
	target, mount := r.GetTargetPath(), r.GetVolumeCapability().GetMount()
	if r.GetVolumeId() == "" || target == "" || mount == nil {
		return nil, invalid("volume id, target path and capability are required")
	}
	if r.GetVolumeContext()["csi.storage.k8s.io/ephemeral"] != "true" {
		return nil, invalid("the volume is not one of a pod's specification")
	}
	n.mutex.Lock()
	defer n.mutex.Unlock()
	if mountAt(target) == nil {
		// The kubelet creates the parent of the path, the driver the path.
		if err := os.Mkdir(target, 0o750); err != nil && !os.IsExist(err) {
			return nil, status.Error(codes.Internal, err.Error())
		}
		options := "size=1m,mode=2770"
		if group := mount.GetVolumeMountGroup(); group != "" {
			options += ",gid=" + group
		}
		if _, err := run("mount", "-t", "tmpfs", "-o", options, *name, target); err != nil {
			return nil, err
		}
	}
	published := 0
	if text, err := os.ReadFile(filepath.Join(target, "published")); err == nil {
		fmt.Sscan(string(text), &published)
	}
	files := map[string]string{"published": fmt.Sprint(published + 1)}
	for key, value := range r.GetVolumeContext() {
		files[key] = value
	}
	for key, value := range r.GetSecrets() {
		files["secret."+key] = value
	}
	for name, value := range files {
		// A reader has the former file or the new one.
		path := filepath.Join(target, strings.ReplaceAll(name, "/", "_"))
		err := os.WriteFile(path+".new", []byte(value), 0o640)
		if err == nil {
			err = os.Rename(path+".new", path)
		}
		if err != nil {
			return nil, status.Error(codes.Internal, err.Error())
		}
	}
	return &csi.NodePublishVolumeResponse{}, nil
}

func (n *inlineNode) NodeUnpublishVolume(_ context.Context, r *csi.NodeUnpublishVolumeRequest) (
	*csi.NodeUnpublishVolumeResponse, error) {
	if r.GetVolumeId() == "" || r.GetTargetPath() == "" {
		return nil, invalid("volume id and target path are required")
	}
	n.mutex.Lock()
	defer n.mutex.Unlock()
	return &csi.NodeUnpublishVolumeResponse{}, unmount(r.GetTargetPath())
}
