// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/cmd/gpuslice/internal/place"
	"github.com/gpuslice/gpuslice/cmd/gpuslice/internal/session"
	"github.com/gpuslice/gpuslice/daemon/config"
	"github.com/gpuslice/gpuslice/enforcer"
	"github.com/gpuslice/gpuslice/enforcer/driver"
)

// embedded starts an enforcer in this process, for one session of this user. stop ends it and removes its files.
func embedded(ctx context.Context) (session.Enforcer, func(), error) {
	dir, err := privateDir()
	if err != nil {
		return nil, nil, fmt.Errorf("make a directory for the session: %w", err)
	}
	options := enforcer.Options{
		RunDir:       filepath.Join(dir, "run"),
		StateDir:     filepath.Join(dir, "state"),
		ContextBytes: uint64(config.Default().Enforcer.ContextOverhead),
		Unprivileged: true,
	}
	options.Library, err = place.New().Library("")
	if err != nil {
		os.RemoveAll(dir)
		return nil, nil, err
	}
	nvml, err := driver.Open()
	if err != nil {
		options.NoTruth = err.Error()
	} else {
		options.Truth = nvml
	}
	closeTruth := func() {
		if nvml != nil {
			_ = nvml.Close()
		}
	}
	e, err := enforcer.New(options)
	if err != nil {
		closeTruth()
		os.RemoveAll(dir)
		return nil, nil, fmt.Errorf("start an enforcer in this process: %w", err)
	}

	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = e.Run(ctx) // only closing could fail, and the files are removed below
	}()
	return e, func() {
		cancel()
		<-done
		closeTruth()
		os.RemoveAll(dir)
	}, nil
}

// privateDir creates a directory in the user's runtime directory if there is one: a socket's path is limited to 108 bytes, and
// TMPDIR may be long.
func privateDir() (string, error) {
	for _, parent := range []string{os.Getenv("XDG_RUNTIME_DIR"), "/tmp"} {
		if parent == "" {
			continue
		}
		if dir, err := os.MkdirTemp(parent, "gpuslice-"); err == nil {
			return dir, nil
		}
	}
	return os.MkdirTemp("", "gpuslice-")
}

func nvmlDevices() ([]api.Device, error) {
	nvml, err := driver.Open()
	if err != nil {
		return nil, err
	}
	defer func() { _ = nvml.Close() }()
	found, err := nvml.Devices()
	if err != nil {
		return nil, err
	}
	devices := make([]api.Device, 0, len(found))
	for _, d := range found {
		devices = append(devices, api.Device{UUID: d.UUID, Index: d.Index, Name: d.Name, Total: d.Total})
	}
	return devices, nil
}
