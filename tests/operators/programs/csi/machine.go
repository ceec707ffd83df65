package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// run executes a program of the machine and returns what it prints.
func run(arguments ...string) (string, error) {
	output, err := exec.Command(arguments[0], arguments[1:]...).CombinedOutput()
	text := strings.TrimSpace(string(output))
	// e2fsck has corrected errors, such as a journal that was not replayed.
	if err != nil && arguments[0] == "e2fsck" && exitCode(err) == 1 {
		return text, nil
	}
	if err != nil {
		return text, status.Errorf(codes.Internal, "%s: %v: %s", strings.Join(arguments, " "), err,
			text)
	}
	return text, nil
}

// exitCode is the status of a program that failed.
func exitCode(err error) int {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode()
	}
	return -1
}

// mounted is a line of /proc/self/mountinfo.
type mounted struct {
	// device is the number of the file system's device, root the part of the file system that is
	// mounted.
	device, root, path string
}

// mounts is the mount table of this container; mounts of the kubelet's folders propagate to it.
func mounts() []mounted {
	text, _ := os.ReadFile("/proc/self/mountinfo")
	var table []mounted
	for _, line := range strings.Split(string(text), "\n") {
		if fields := strings.Fields(line); len(fields) > 5 {
			table = append(table, mounted{fields[2], fields[3], fields[4]})
		}
	}
	return table
}

// mountAt is the last mount on a path, or nil.
func mountAt(path string) *mounted {
	var last *mounted
	for _, mount := range mounts() {
		if mount.path == path {
			last = &mount
		}
	}
	return last
}

// loopDevice is the loop device of a file, or empty.
func loopDevice(file string) (string, error) {
	text, err := run("losetup", "-j", file)
	device, _, _ := strings.Cut(text, ":")
	return device, err
}

// attachLoop is the loop device of a file, a new one if there is none.
func attachLoop(file string) (string, error) {
	device, err := loopDevice(file)
	if err != nil || device != "" {
		return device, err
	}
	return run("losetup", "--find", "--show", file)
}

// detachLoop removes the loop device of a file, if there is one; the kernel does it when the last
// mount of the device ends.
func detachLoop(file string) error {
	device, err := loopDevice(file)
	if err != nil || device == "" {
		return err
	}
	_, err = run("losetup", "-d", device)
	return err
}

// fileSystem is the type of the file system on a device, or empty.
func fileSystem(device string) (string, error) {
	// 2: nothing was found
	text, err := run("blkid", "-p", "-s", "TYPE", "-o", "value", device)
	if err != nil && strings.Contains(err.Error(), "exit status 2") {
		return "", nil
	}
	return text, err
}

// unmount unmounts what is on a path, if anything is, and removes the path.
func unmount(path string) error {
	for mountAt(path) != nil {
		if _, err := run("umount", path); err != nil {
			return err
		}
	}
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		return status.Error(codes.Internal, err.Error())
	}
	return nil
}

// bind mounts a directory or device on another path.
func bind(from, to string, readOnly bool) error {
	if _, err := run("mount", "--bind", from, to); err != nil || !readOnly {
		return err
	}
	_, err := run("mount", "-o", "remount,bind,ro", to)
	return err
}

// requireDirectory checks a directory that the kubelet creates.
func requireDirectory(path string) error {
	if info, err := os.Stat(path); err != nil {
		return status.Error(codes.Internal, err.Error())
	} else if !info.IsDir() {
		return status.Error(codes.Internal, fmt.Sprintf("%s is no directory", path))
	}
	return nil
}
