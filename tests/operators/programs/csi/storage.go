package main

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	mebibyte = 1 << 20
	// defaultBytes is the size of a volume without one, capacity what all volumes may have together.
	defaultBytes = 32 * mebibyte
	capacity     = 10 << 30
)

// disk is a volume or a snapshot of the storage system: a folder with the file `disk` and this
// record.
type disk struct {
	Name  string
	Bytes int64
	// Source is what the content was copied from: "volume ID" or "snapshot ID".
	Source string
	// Node is where a volume is attached.
	Node    string
	Created time.Time
}

// exclusively runs a change of the storage system; other machines wait.
func exclusively[T any](change func() (T, error)) (result T, err error) {
	lock, err := os.OpenFile(filepath.Join(*folder, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return result, status.Error(codes.Internal, err.Error())
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return result, status.Error(codes.Internal, err.Error())
	}
	return change()
}

// identifier is the id of a volume or snapshot: stable, so that a repeated request finds it.
func identifier(kind, name string) string {
	return fmt.Sprintf("%s-%.8x", strings.TrimSuffix(kind, "s"), sha256.Sum256([]byte(name)))
}

// kind is "volumes" or "snapshots".
func path(kind, id, file string) string { return filepath.Join(*folder, kind, id, file) }

// load is the record of a volume or snapshot; the error is NotFound if there is none.
func load(kind, id string) (*disk, error) {
	if id == "" || strings.ContainsAny(id, "/.") {
		return nil, status.Errorf(codes.NotFound, "there is no %q in %s", id, kind)
	}
	text, err := os.ReadFile(path(kind, id, "record"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, status.Errorf(codes.NotFound, "there is no %q in %s", id, kind)
	}
	found := &disk{}
	if err == nil {
		err = json.Unmarshal(text, found)
	}
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return found, nil
}

// store writes a record by renaming, so that a killed driver leaves the former one.
func store(kind, id string, record *disk) error {
	text, err := json.Marshal(record)
	if err == nil {
		err = os.WriteFile(path(kind, id, "new"), text, 0o600)
	}
	if err == nil {
		err = os.Rename(path(kind, id, "new"), path(kind, id, "record"))
	}
	if err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	return nil
}

// create makes a volume or snapshot with the content of the file `from`, or empty.
func create(kind, id, from string, record *disk) error {
	err := os.MkdirAll(path(kind, id, ""), 0o700)
	if err == nil {
		err = copySparse(from, path(kind, id, "disk"))
	}
	if err == nil {
		err = os.Truncate(path(kind, id, "disk"), record.Bytes)
	}
	if err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	record.Created = time.Now()
	return store(kind, id, record)
}

// copySparse copies a file but its blocks of zeros; without a source the copy is empty.
func copySparse(from, to string) error {
	out, err := os.Create(to)
	if err != nil || from == "" {
		return errors.Join(err, out.Close())
	}
	defer out.Close()
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	block, zeros := make([]byte, 4096), string(make([]byte, 4096))
	for offset := int64(0); ; offset += int64(len(block)) {
		n, err := io.ReadFull(in, block)
		if string(block[:n]) != zeros[:n] {
			if _, err := out.WriteAt(block[:n], offset); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// volumes are the records of all volumes.
func volumes() []*disk {
	var records []*disk
	entries, _ := os.ReadDir(filepath.Join(*folder, "volumes"))
	for _, entry := range entries {
		if record, err := load("volumes", entry.Name()); err == nil {
			records = append(records, record)
		}
	}
	return records
}

// allocated is what all volumes have together.
func allocated() int64 {
	sum := int64(0)
	for _, record := range volumes() {
		sum += record.Bytes
	}
	return sum
}

// attachedTo is the number of volumes of a node.
func attachedTo(node string) int64 {
	number := int64(0)
	for _, record := range volumes() {
		if record.Node == node {
			number++
		}
	}
	return number
}
