package main

import (
	"context"
	"os"
	"path/filepath"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// controller creates, attaches, copies and grows volumes of the storage system.
type controller struct {
	csi.UnimplementedControllerServer
}

func invalid(text string) error { return status.Error(codes.InvalidArgument, text) }

func (*controller) ControllerGetCapabilities(context.Context,
	*csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	response := &csi.ControllerGetCapabilitiesResponse{}
	for _, call := range []csi.ControllerServiceCapability_RPC_Type{
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME,
		csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME,
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT,
		csi.ControllerServiceCapability_RPC_CLONE_VOLUME,
		csi.ControllerServiceCapability_RPC_EXPAND_VOLUME,
		csi.ControllerServiceCapability_RPC_GET_CAPACITY,
		csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
	} {
		response.Capabilities = append(response.Capabilities, &csi.ControllerServiceCapability{
			Type: &csi.ControllerServiceCapability_Rpc{
				Rpc: &csi.ControllerServiceCapability_RPC{Type: call}}})
	}
	return response, nil
}

// unsupported says what the driver does not support of the capabilities, or is empty.
func unsupported(capabilities ...*csi.VolumeCapability) string {
	for _, capability := range capabilities {
		switch capability.GetAccessMode().GetMode() {
		case csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER,
			csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY,
			csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER,
			csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER:
		default:
			return "a volume is attached to one node at a time"
		}
		if capability.GetBlock() == nil && capability.GetMount() == nil {
			return "the access type is missing"
		}
		if t := capability.GetMount().GetFsType(); t != "" && t != "ext4" {
			return "the only file system is ext4"
		}
	}
	return ""
}

// size is the number of bytes that a range asks for, or the smallest allowed one.
func size(wanted *csi.CapacityRange, least int64) (int64, error) {
	bytes := max(wanted.GetRequiredBytes(), least)
	if wanted.GetRequiredBytes() == 0 && least == 0 {
		bytes = defaultBytes
	}
	bytes = (bytes + mebibyte - 1) / mebibyte * mebibyte
	if most := wanted.GetLimitBytes(); bytes > capacity || most != 0 && bytes > most {
		return 0, status.Errorf(codes.OutOfRange, "a volume of %d bytes is not possible", bytes)
	}
	return bytes, nil
}

func (*controller) CreateVolume(_ context.Context, r *csi.CreateVolumeRequest) (
	*csi.CreateVolumeResponse, error) {
	if r.GetName() == "" || len(r.GetVolumeCapabilities()) == 0 {
		return nil, invalid("name and capabilities are required")
	}
	if text := unsupported(r.GetVolumeCapabilities()...); text != "" {
		return nil, invalid(text)
	}
	return exclusively(func() (*csi.CreateVolumeResponse, error) {
		id, from, least := identifier("volumes", r.GetName()), "", int64(0)
		wanted := &disk{Name: r.GetName()}
		for kind, source := range map[string]string{
			"volumes":   r.GetVolumeContentSource().GetVolume().GetVolumeId(),
			"snapshots": r.GetVolumeContentSource().GetSnapshot().GetSnapshotId(),
		} {
			if source == "" {
				continue
			}
			record, err := load(kind, source)
			if err != nil {
				return nil, err
			}
			wanted.Source, from, least = kind+" "+source, path(kind, source, "disk"), record.Bytes
		}
		bytes, err := size(r.GetCapacityRange(), least)
		if err != nil {
			return nil, err
		}
		wanted.Bytes = bytes
		existing, err := load("volumes", id)
		switch {
		case err == nil:
			most := r.GetCapacityRange().GetLimitBytes()
			if existing.Source != wanted.Source || existing.Bytes < bytes ||
				most != 0 && existing.Bytes > most {
				return nil, status.Error(codes.AlreadyExists, "the volume exists and is different")
			}
			wanted = existing
		case status.Code(err) != codes.NotFound:
			return nil, err
		case allocated()+bytes > capacity:
			return nil, status.Error(codes.ResourceExhausted, "the storage system is full")
		default:
			if err := create("volumes", id, from, wanted); err != nil {
				return nil, err
			}
		}
		volume := &csi.Volume{VolumeId: id, CapacityBytes: wanted.Bytes,
			VolumeContext: map[string]string{"created-as": r.GetName()},
			ContentSource: r.GetVolumeContentSource()}
		if segments := topology(); segments != nil {
			volume.AccessibleTopology = []*csi.Topology{segments}
		}
		return &csi.CreateVolumeResponse{Volume: volume}, nil
	})
}

func (*controller) DeleteVolume(_ context.Context, r *csi.DeleteVolumeRequest) (
	*csi.DeleteVolumeResponse, error) {
	if r.GetVolumeId() == "" {
		return nil, invalid("the volume id is required")
	}
	return exclusively(func() (*csi.DeleteVolumeResponse, error) {
		record, err := load("volumes", r.GetVolumeId())
		if status.Code(err) == codes.NotFound {
			return &csi.DeleteVolumeResponse{}, nil
		} else if err != nil {
			return nil, err
		}
		if record.Node != "" {
			return nil, status.Errorf(codes.FailedPrecondition, "the volume is attached to %s",
				record.Node)
		}
		return &csi.DeleteVolumeResponse{}, os.RemoveAll(path("volumes", r.GetVolumeId(), ""))
	})
}

// attachment is what attaching a volume returns and staging it requires.
func attachment(id, node string) string { return id + "@" + node }

func (*controller) ControllerPublishVolume(_ context.Context,
	r *csi.ControllerPublishVolumeRequest) (*csi.ControllerPublishVolumeResponse, error) {
	if r.GetVolumeId() == "" || r.GetNodeId() == "" || r.GetVolumeCapability() == nil {
		return nil, invalid("volume id, node id and capability are required")
	}
	if text := unsupported(r.GetVolumeCapability()); text != "" {
		return nil, invalid(text)
	}
	return exclusively(func() (*csi.ControllerPublishVolumeResponse, error) {
		record, err := load("volumes", r.GetVolumeId())
		if err != nil {
			return nil, err
		}
		if _, err := os.Stat(filepath.Join(*folder, "nodes", r.GetNodeId())); err != nil {
			return nil, status.Errorf(codes.NotFound, "there is no node %q", r.GetNodeId())
		}
		if record.Node != "" && record.Node != r.GetNodeId() {
			return nil, status.Errorf(codes.FailedPrecondition, "the volume is attached to %s",
				record.Node)
		}
		if *limit > 0 && record.Node == "" && attachedTo(r.GetNodeId()) >= *limit {
			return nil, status.Errorf(codes.ResourceExhausted, "%s has %d volumes", r.GetNodeId(), *limit)
		}
		record.Node = r.GetNodeId()
		return &csi.ControllerPublishVolumeResponse{PublishContext: map[string]string{
			"attachment": attachment(r.GetVolumeId(), r.GetNodeId()),
		}}, store("volumes", r.GetVolumeId(), record)
	})
}

func (*controller) ControllerUnpublishVolume(_ context.Context,
	r *csi.ControllerUnpublishVolumeRequest) (*csi.ControllerUnpublishVolumeResponse, error) {
	if r.GetVolumeId() == "" {
		return nil, invalid("the volume id is required")
	}
	return exclusively(func() (*csi.ControllerUnpublishVolumeResponse, error) {
		record, err := load("volumes", r.GetVolumeId())
		if status.Code(err) == codes.NotFound {
			return &csi.ControllerUnpublishVolumeResponse{}, nil
		} else if err != nil {
			return nil, err
		}
		if r.GetNodeId() == "" || record.Node == r.GetNodeId() {
			record.Node = ""
			err = store("volumes", r.GetVolumeId(), record)
		}
		return &csi.ControllerUnpublishVolumeResponse{}, err
	})
}

func (*controller) ValidateVolumeCapabilities(_ context.Context,
	r *csi.ValidateVolumeCapabilitiesRequest) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	if r.GetVolumeId() == "" || len(r.GetVolumeCapabilities()) == 0 {
		return nil, invalid("volume id and capabilities are required")
	}
	if _, err := load("volumes", r.GetVolumeId()); err != nil {
		return nil, err
	}
	if text := unsupported(r.GetVolumeCapabilities()...); text != "" {
		return &csi.ValidateVolumeCapabilitiesResponse{Message: text}, nil
	}
	return &csi.ValidateVolumeCapabilitiesResponse{
		Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{
			VolumeCapabilities: r.GetVolumeCapabilities()}}, nil
}

func (*controller) GetCapacity(context.Context, *csi.GetCapacityRequest) (
	*csi.GetCapacityResponse, error) {
	return &csi.GetCapacityResponse{AvailableCapacity: capacity - allocated()}, nil
}

func (*controller) ControllerExpandVolume(_ context.Context,
	r *csi.ControllerExpandVolumeRequest) (*csi.ControllerExpandVolumeResponse, error) {
	if r.GetVolumeId() == "" || r.GetCapacityRange() == nil {
		return nil, invalid("volume id and capacity are required")
	}
	return exclusively(func() (*csi.ControllerExpandVolumeResponse, error) {
		record, err := load("volumes", r.GetVolumeId())
		if err != nil {
			return nil, err
		}
		bytes, err := size(r.GetCapacityRange(), record.Bytes)
		if err == nil && bytes > record.Bytes {
			record.Bytes = bytes
			err = os.Truncate(path("volumes", r.GetVolumeId(), "disk"), bytes)
		}
		if err == nil {
			err = store("volumes", r.GetVolumeId(), record)
		}
		return &csi.ControllerExpandVolumeResponse{
			CapacityBytes: record.Bytes, NodeExpansionRequired: true}, err
	})
}

func (*controller) CreateSnapshot(_ context.Context, r *csi.CreateSnapshotRequest) (
	*csi.CreateSnapshotResponse, error) {
	if r.GetName() == "" || r.GetSourceVolumeId() == "" {
		return nil, invalid("name and source volume are required")
	}
	return exclusively(func() (*csi.CreateSnapshotResponse, error) {
		source, err := load("volumes", r.GetSourceVolumeId())
		if err != nil {
			return nil, err
		}
		id := identifier("snapshots", r.GetName())
		record, err := load("snapshots", id)
		if status.Code(err) == codes.NotFound {
			record = &disk{Name: r.GetName(), Bytes: source.Bytes,
				Source: "volumes " + r.GetSourceVolumeId()}
			err = create("snapshots", id, path("volumes", r.GetSourceVolumeId(), "disk"), record)
		}
		if err != nil {
			return nil, err
		}
		if record.Source != "volumes "+r.GetSourceVolumeId() {
			return nil, status.Error(codes.AlreadyExists, "the snapshot is of another volume")
		}
		return &csi.CreateSnapshotResponse{Snapshot: &csi.Snapshot{SnapshotId: id,
			SourceVolumeId: r.GetSourceVolumeId(), SizeBytes: record.Bytes, ReadyToUse: true,
			CreationTime: timestamppb.New(record.Created)}}, nil
	})
}

func (*controller) DeleteSnapshot(_ context.Context, r *csi.DeleteSnapshotRequest) (
	*csi.DeleteSnapshotResponse, error) {
	if r.GetSnapshotId() == "" {
		return nil, invalid("the snapshot id is required")
	}
	return exclusively(func() (*csi.DeleteSnapshotResponse, error) {
		if _, err := load("snapshots", r.GetSnapshotId()); status.Code(err) == codes.NotFound {
			return &csi.DeleteSnapshotResponse{}, nil
		} else if err != nil {
			return nil, err
		}
		return &csi.DeleteSnapshotResponse{}, os.RemoveAll(path("snapshots", r.GetSnapshotId(), ""))
	})
}
