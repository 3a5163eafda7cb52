// SPDX-License-Identifier: Apache-2.0

package mount

import (
	"errors"
	"io"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

const (
	// GPUMajor is the major number of NVIDIA's device nodes (devices.txt in Linux).
	GPUMajor = 195
	// MaxGPUMinor is the highest minor number of a GPU; 254 is nvidia-modeset, 255 is nvidiactl.
	MaxGPUMinor = 247
)

// maxNodes limits the entries of a /dev that are read. A large host has some hundreds.
const maxNodes = 8192

// Nodes lists the device nodes of GPUs in a container's /dev.
type Nodes struct {
	Minors []uint32 // in no order
	// Unclear is set if there may be others: the node of WSL gives access to all GPUs, or /dev cannot be read.
	Unclear bool
}

// GPUs returns the device nodes of GPUs in the container's /dev, which the runtime creates before it runs hooks. It identifies
// them by number, since a node may have any name.
func (c *Container) GPUs() (nodes Nodes) {
	err := c.ns.do(func() error {
		dev, err := openObject(c.root.fd, "dev", unix.O_DIRECTORY, inRoot)
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
			return nil
		}
		if err != nil {
			return err
		}
		defer dev.close()
		fd, err := c.reopen(dev)
		if err != nil {
			return err
		}
		dir := os.NewFile(uintptr(fd), "/dev")
		defer dir.Close()
		return nodes.read(dir)
	})
	nodes.Unclear = nodes.Unclear || err != nil
	return nodes
}

func (n *Nodes) read(dir *os.File) error {
	names, err := dir.Readdirnames(maxNodes + 1)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if len(names) > maxNodes {
		return unix.E2BIG
	}
	fd := int(dir.Fd())
	for _, name := range names {
		var stat unix.Stat_t
		err := unix.Fstatat(fd, name, &stat, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT)
		switch {
		case errors.Is(err, unix.ENOENT):
		case err != nil:
			n.Unclear = true
		case stat.Mode&unix.S_IFMT != unix.S_IFCHR:
		case name == "dxg":
			n.Unclear = true
		case unix.Major(stat.Rdev) == GPUMajor && unix.Minor(stat.Rdev) <= MaxGPUMinor:
			if minor := unix.Minor(stat.Rdev); !slices.Contains(n.Minors, minor) {
				n.Minors = append(n.Minors, minor)
			}
		}
	}
	return nil
}
