// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/test/must"
)

func TestTheLibraryIsOfTheSameInstallation(t *testing.T) {
	prefix := t.TempDir()
	of := func() string {
		return libraryOf(func() (string, error) { return filepath.Join(prefix, "bin/gpusliced"), nil })
	}
	if got := of(); got != api.DefaultLibrary {
		t.Errorf("without one: %s", got)
	}
	library := filepath.Join(prefix, "lib/gpuslice/libgpuslice.so")
	must.Do(t, os.MkdirAll(filepath.Dir(library), 0o755))
	must.Do(t, os.WriteFile(library, nil, 0o644))
	if got := of(); got != library {
		t.Errorf("%s, want %s", got, library)
	}
	if got := libraryOf(func() (string, error) { return "", errors.New("unknown") }); got != api.DefaultLibrary {
		t.Errorf("of an unknown executable: %s", got)
	}
}
