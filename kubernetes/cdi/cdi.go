// SPDX-License-Identifier: Apache-2.0

// Package cdi writes the CDI specifications of claims. They add the GPU to the container, and the OCI hook that adds the
// container to the claim's pool. Each claim has one file, which is replaced atomically and names the claim, so that a restarted
// driver finds the claims prepared before.
//
// The hook's arguments come from these files. Only root writes them, without any input from pods.
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

// Kind is the CDI kind of this driver's devices.
const Kind = "gpuslice.io/vram"

const (
	prefix = "gpuslice.io-" // of file names
	suffix = ".json"

	namespaceKey, nameKey, uidKey = "gpuslice.io/namespace", "gpuslice.io/name", "gpuslice.io/uid"
)

// hookSeconds is the hook's timeout. It exceeds the hook's waits for the enforcer, except that for an eviction, which no claim
// needs at that time.
const hookSeconds = 30

// Claim identifies the claim of a file.
type Claim struct {
	Namespace, Name string
	UID             types.UID
}

func (c Claim) String() string { return c.Namespace + "/" + c.Name }

// Share describes one request of a claim.
type Share struct {
	Pool string // the enforcer's pool; also the name of the CDI device
	GPUs []GPU  // GPUs without a device in NVIDIA's specification
}

// DeviceID returns the CDI name of a pool's device.
func DeviceID(pool string) string { return Kind + "=" + pool }

// Writer writes the files of claims.
type Writer struct {
	Dir  string
	Hook string // path on the host
	// Config is the path of gpuslice's configuration on the host.
	Config string
	// Libraries is the directory of the driver's libraries on a host without NVIDIA's specification; "" if images contain them.
	Libraries string
}

func (w *Writer) file(uid types.UID) string {
	return filepath.Join(w.Dir, prefix+string(uid)+suffix)
}

// Write writes or replaces a claim's file.
func (w *Writer) Write(c Claim, shares []Share) error {
	spec := specs.Spec{Kind: Kind, Annotations: map[string]string{namespaceKey: c.Namespace, nameKey: c.Name, uidKey: string(c.UID)}}
	for _, s := range shares {
		edits := specs.ContainerEdits{Hooks: []*specs.Hook{w.hook(s.Pool, "prestart"), w.hook(s.Pool, "poststop")}}
		if len(s.GPUs) > 0 {
			edits.DeviceNodes, edits.Mounts = nodes(s.GPUs), w.libraries()
			// Keeps NVIDIA's runtime from adding devices, if it is the default one.
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
		Env: []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "GOMAXPROCS=1"}, // without it a runtime may pass on the image's
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

// List lists the claims with a file. For invalid content it returns only the UID, from the file's name. A failed read is an
// error, since the claim may be in use.
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
