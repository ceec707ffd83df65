package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// loopNode gives volumes of the storage system to pods of this machine.
type loopNode struct {
	csi.UnimplementedNodeServer
	// one call at a time
	mutex sync.Mutex
}

func (*loopNode) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (
	*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: *node, MaxVolumesPerNode: *limit,
		AccessibleTopology: topology()}, nil
}

func nodeCapabilities(calls ...csi.NodeServiceCapability_RPC_Type) *csi.NodeGetCapabilitiesResponse {
	response := &csi.NodeGetCapabilitiesResponse{}
	for _, call := range calls {
		response.Capabilities = append(response.Capabilities, &csi.NodeServiceCapability{
			Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{Type: call}}})
	}
	return response
}

func (*loopNode) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (
	*csi.NodeGetCapabilitiesResponse, error) {
	return nodeCapabilities(csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME,
		csi.NodeServiceCapability_RPC_EXPAND_VOLUME,
		csi.NodeServiceCapability_RPC_GET_VOLUME_STATS,
		csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER), nil
}

func (n *loopNode) NodeStageVolume(_ context.Context, r *csi.NodeStageVolumeRequest) (
	*csi.NodeStageVolumeResponse, error) {
	if r.GetVolumeId() == "" || r.GetStagingTargetPath() == "" || r.GetVolumeCapability() == nil {
		return nil, invalid("volume id, staging path and capability are required")
	}
	if text := unsupported(r.GetVolumeCapability()); text != "" {
		return nil, invalid(text)
	}
	n.mutex.Lock()
	defer n.mutex.Unlock()
	record, err := load("volumes", r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	if record.Node != *node ||
		r.GetPublishContext()["attachment"] != attachment(r.GetVolumeId(), *node) {
		return nil, status.Errorf(codes.FailedPrecondition, "the volume is attached to %q, not to %s",
			record.Node, *node)
	}
	if err := requireDirectory(r.GetStagingTargetPath()); err != nil {
		return nil, err
	}
	file := path("volumes", r.GetVolumeId(), "disk")
	device, err := attachLoop(file)
	if err != nil || r.GetVolumeCapability().GetMount() == nil ||
		mountAt(r.GetStagingTargetPath()) != nil {
		return &csi.NodeStageVolumeResponse{}, err
	}
	if err := mountDevice(device, r.GetStagingTargetPath(), r.GetVolumeCapability()); err != nil {
		return nil, err
	}
	// The device ends with the file system's last mount, also when the machine does.
	return &csi.NodeStageVolumeResponse{}, detachLoop(file)
}

// mountDevice mounts a device and creates the file system of an empty one; the file system gets the
// size of the device.
func mountDevice(device, path string, capability *csi.VolumeCapability) error {
	existing, err := fileSystem(device)
	if err != nil {
		return err
	}
	switch existing {
	case "":
		if _, err := run("mkfs.ext4", "-q", "-m", "0", device); err != nil {
			return err
		}
	case "ext4":
		// Growth of a mounted file system needs CAP_SYS_RESOURCE, that of another one needs a check,
		// which also replays the journal of a copy.
		if _, err := run("e2fsck", "-f", "-y", device); err != nil {
			return err
		}
		if _, err := run("resize2fs", device); err != nil {
			return err
		}
	default:
		return status.Errorf(codes.Internal, "the volume contains %s", existing)
	}
	mount := []string{"mount", "-t", "ext4"}
	if flags := capability.GetMount().GetMountFlags(); len(flags) > 0 {
		mount = append(mount, "-o", strings.Join(flags, ","))
	}
	_, err = run(append(mount, device, path)...)
	return err
}

func (n *loopNode) NodeUnstageVolume(_ context.Context, r *csi.NodeUnstageVolumeRequest) (
	*csi.NodeUnstageVolumeResponse, error) {
	if r.GetVolumeId() == "" || r.GetStagingTargetPath() == "" {
		return nil, invalid("volume id and staging path are required")
	}
	n.mutex.Lock()
	defer n.mutex.Unlock()
	record, err := load("volumes", r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	file := path("volumes", r.GetVolumeId(), "disk")
	device, err := loopDevice(file)
	if err != nil {
		return nil, err
	}
	if at := publishedAt(device, r.GetStagingTargetPath()); at != "" {
		return nil, status.Errorf(codes.FailedPrecondition, "the volume is still published at %s", at)
	}
	if mountAt(r.GetStagingTargetPath()) != nil {
		if _, err := run("umount", r.GetStagingTargetPath()); err != nil {
			return nil, err
		}
	}
	if record.Node != "" && record.Node != *node {
		// All machines share the kernel: this is the device of the other one.
		return &csi.NodeUnstageVolumeResponse{}, nil
	}
	return &csi.NodeUnstageVolumeResponse{}, detachLoop(file)
}

// publishedAt is a path other than the staging path where a volume is mounted, its file system or
// its device, or empty.
func publishedAt(device, staging string) string {
	stagingMount := mountAt(staging)
	for _, mount := range mounts() {
		isFiles := stagingMount != nil && mount.device == stagingMount.device &&
			mount.path != staging
		isDevice := device != "" && mount.root == "/"+filepath.Base(device)
		if isFiles || isDevice {
			return mount.path
		}
	}
	return ""
}

func (n *loopNode) NodePublishVolume(_ context.Context, r *csi.NodePublishVolumeRequest) (
	*csi.NodePublishVolumeResponse, error) {
	target := r.GetTargetPath()
	if r.GetVolumeId() == "" || target == "" || r.GetVolumeCapability() == nil {
		return nil, invalid("volume id, target path and capability are required")
	}
	if r.GetStagingTargetPath() == "" {
		return nil, invalid("the staging path is required")
	}
	n.mutex.Lock()
	defer n.mutex.Unlock()
	if _, err := load("volumes", r.GetVolumeId()); err != nil {
		return nil, err
	}
	if mountAt(target) != nil {
		return &csi.NodePublishVolumeResponse{}, nil
	}
	device, err := loopDevice(path("volumes", r.GetVolumeId(), "disk"))
	if err != nil {
		return nil, err
	}
	if at := publishedAt(device, r.GetStagingTargetPath()); at != "" &&
		r.GetVolumeCapability().GetAccessMode().GetMode() ==
			csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER {
		return nil, status.Errorf(codes.FailedPrecondition, "the volume is published at %s", at)
	}
	from := r.GetStagingTargetPath()
	if r.GetVolumeCapability().GetBlock() != nil {
		from = device
	} else if mountAt(from) == nil {
		from = ""
	}
	if from == "" {
		return nil, status.Errorf(codes.FailedPrecondition, "the volume is not staged at %s",
			r.GetStagingTargetPath())
	}
	// The kubelet creates the parent of the path, the driver the path.
	if r.GetVolumeCapability().GetBlock() != nil {
		err = os.WriteFile(target, nil, 0o640)
	} else if err = os.Mkdir(target, 0o750); os.IsExist(err) {
		err = nil
	}
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &csi.NodePublishVolumeResponse{}, bind(from, target, r.GetReadonly())
}

func (n *loopNode) NodeUnpublishVolume(_ context.Context, r *csi.NodeUnpublishVolumeRequest) (
	*csi.NodeUnpublishVolumeResponse, error) {
	if r.GetVolumeId() == "" || r.GetTargetPath() == "" {
		return nil, invalid("volume id and target path are required")
	}
	n.mutex.Lock()
	defer n.mutex.Unlock()
	if _, err := load("volumes", r.GetVolumeId()); err != nil {
		return nil, err
	}
	return &csi.NodeUnpublishVolumeResponse{}, unmount(r.GetTargetPath())
}

func (n *loopNode) NodeExpandVolume(_ context.Context, r *csi.NodeExpandVolumeRequest) (
	*csi.NodeExpandVolumeResponse, error) {
	if r.GetVolumeId() == "" || r.GetVolumePath() == "" {
		return nil, invalid("volume id and path are required")
	}
	n.mutex.Lock()
	defer n.mutex.Unlock()
	record, err := load("volumes", r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	device, err := loopDevice(path("volumes", r.GetVolumeId(), "disk"))
	if err != nil {
		return nil, err
	}
	if device == "" || mountAt(r.GetVolumePath()) == nil && r.GetVolumeCapability().GetBlock() == nil {
		return nil, status.Errorf(codes.NotFound, "the volume is not at %s", r.GetVolumePath())
	}
	if _, err := run("losetup", "-c", device); err != nil {
		return nil, err
	}
	if r.GetVolumeCapability().GetBlock() == nil {
		_, err = run("resize2fs", device)
	}
	return &csi.NodeExpandVolumeResponse{CapacityBytes: record.Bytes}, err
}

func (*loopNode) NodeGetVolumeStats(_ context.Context, r *csi.NodeGetVolumeStatsRequest) (
	*csi.NodeGetVolumeStatsResponse, error) {
	if r.GetVolumeId() == "" || r.GetVolumePath() == "" {
		return nil, invalid("volume id and path are required")
	}
	record, err := load("volumes", r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	mount, usage := mountAt(r.GetVolumePath()), syscall.Statfs_t{}
	if mount == nil || syscall.Statfs(r.GetVolumePath(), &usage) != nil {
		return nil, status.Errorf(codes.NotFound, "the volume is not at %s", r.GetVolumePath())
	}
	if strings.HasPrefix(mount.root, "/loop") {
		return &csi.NodeGetVolumeStatsResponse{Usage: []*csi.VolumeUsage{
			{Unit: csi.VolumeUsage_BYTES, Total: record.Bytes}}}, nil
	}
	block := usage.Bsize
	return &csi.NodeGetVolumeStatsResponse{Usage: []*csi.VolumeUsage{
		{Unit: csi.VolumeUsage_BYTES, Total: int64(usage.Blocks) * block,
			Available: int64(usage.Bavail) * block, Used: int64(usage.Blocks-usage.Bfree) * block},
		{Unit: csi.VolumeUsage_INODES, Total: int64(usage.Files), Available: int64(usage.Ffree),
			Used: int64(usage.Files - usage.Ffree)},
	}}, nil
}
