// SPDX-License-Identifier: Apache-2.0

// Package cdi writes the specifications by which a container runtime gives a container what a claim promises it: the GPU, and the OCI
// hook that puts the container into the claim's pool. A claim has one file, which appears whole or not at all and also
// says whose it is, so that a driver that starts knows what the one before it has prepared.
//
// The arguments of the hook come from these files, which only root writes: nothing that a pod says reaches them.
package cdi

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"tags.cncf.io/container-device-interface/pkg/cdi"
	specs "tags.cncf.io/container-device-interface/specs-go"
)

// Kind is that of the devices that this driver writes.
const Kind = "gpuslice.io/vram"

const (
	prefix = "gpuslice.io-" // of the names of files
	suffix = ".json"

	namespaceKey, nameKey, uidKey = "gpuslice.io/namespace", "gpuslice.io/name", "gpuslice.io/uid"
)

// hookSeconds is longer than the hook itself waits for the enforcer: no room is made for a claim at that time.
const hookSeconds = 30

// Claim is whose a file is.
type Claim struct {
	Namespace, Name string
	UID             types.UID
}

func (c Claim) String() string { return c.Namespace + "/" + c.Name }

// Share is what one request of a claim has.
type Share struct {
	Pool string // of the enforcer; also the device's name
	GPUs []GPU  // that no specification of NVIDIA's brings
}

// DeviceID names the CDI device of a pool.
func DeviceID(pool string) string { return Kind + "=" + pool }

// Writer writes the files of claims.
type Writer struct {
	Dir  string
	Hook string // the hook's path on the host
	// Config is the configuration of gpuslice on the host.
	Config string
	// Libraries is the directory on the host with the driver's libraries, for hosts without NVIDIA's specification; "" if the images have them.
	Libraries string
}

func (w *Writer) file(uid types.UID) string {
	return filepath.Join(w.Dir, prefix+string(uid)+suffix)
}

// Write writes a claim's file, or the same once more.
func (w *Writer) Write(c Claim, shares []Share) error {
	spec := specs.Spec{Kind: Kind, Annotations: map[string]string{namespaceKey: c.Namespace, nameKey: c.Name, uidKey: string(c.UID)}}
	for _, s := range shares {
		edits := specs.ContainerEdits{Hooks: []*specs.Hook{w.hook(s.Pool, "prestart"), w.hook(s.Pool, "poststop")}}
		if len(s.GPUs) > 0 {
			edits.DeviceNodes, edits.Mounts = nodes(s.GPUs), w.libraries()
			// NVIDIA's runtime, where it is the default one, shall add nothing of its own.
			edits.Env = []string{"NVIDIA_VISIBLE_DEVICES=void"}
		}
		spec.Devices = append(spec.Devices, specs.Device{Name: s.Pool, ContainerEdits: edits})
	}
	var err error
	if spec.Version, err = specs.MinimumRequiredVersion(&spec); err != nil {
		return fmt.Errorf("the CDI specification of claim %s: %w", c, err)
	}
	text, err := json.Marshal(spec)
	if err != nil {
		return fmt.Errorf("the CDI specification of claim %s: %w", c, err)
	}
	file := w.file(c.UID)
	if err := os.WriteFile(file+".tmp", text, 0o644); err != nil {
		return fmt.Errorf("the CDI specification of claim %s: %w", c, err)
	}
	if err := os.Rename(file+".tmp", file); err != nil {
		return fmt.Errorf("the CDI specification of claim %s: %w", c, err)
	}
	return nil
}

func (w *Writer) hook(pool, stage string) *specs.Hook {
	seconds := hookSeconds
	return &specs.Hook{
		HookName: stage, Path: w.Hook, Args: []string{"gpuslice-hook", "--config", w.Config, "--pool", pool, stage}, Timeout: &seconds,
		Env: []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "GOMAXPROCS=1"}, // without any a runtime may hand on the image's
	}
}

// Remove removes a claim's file, if there is one.
func (w *Writer) Remove(uid types.UID) error {
	var all []error
	for _, file := range []string{w.file(uid), w.file(uid) + ".tmp"} {
		if err := os.Remove(file); err != nil && !errors.Is(err, os.ErrNotExist) {
			all = append(all, err)
		}
	}
	return errors.Join(all...)
}

// List lists the claims that have a file. One with invalid content counts by its name, and has no namespace and name. A failed read is an
// error: the claim may be in use.
func (w *Writer) List() ([]Claim, error) {
	entries, err := os.ReadDir(w.Dir)
	if err != nil {
		return nil, fmt.Errorf("list the CDI specifications: %w", err)
	}
	var claims []Claim
	for _, e := range entries {
		uid, ours := strings.CutPrefix(e.Name(), prefix)
		uid, whole := strings.CutSuffix(uid, suffix)
		if !ours || !whole {
			continue
		}
		c := Claim{UID: types.UID(uid)}
		spec, err := cdi.ReadSpec(filepath.Join(w.Dir, e.Name()), 0)
		var read *fs.PathError
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case errors.As(err, &read):
			return nil, fmt.Errorf("list the CDI specifications: %w", err)
		case err == nil && spec.Annotations[uidKey] == uid:
			c.Namespace, c.Name = spec.Annotations[namespaceKey], spec.Annotations[nameKey]
		}
		claims = append(claims, c)
	}
	return claims, nil
}
