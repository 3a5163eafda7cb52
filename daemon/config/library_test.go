// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

func TestTheLibraryIsOfTheSameInstallation(t *testing.T) {
	prefix := t.TempDir()
	of := func() string {
		return libraryOf(func() (string, error) { return filepath.Join(prefix, "bin/gpusliced"), nil })
	}
	expect.Equal(t, of(), api.DefaultLibrary, "without one")
	library := filepath.Join(prefix, "lib/gpuslice/libgpuslice.so")
	must.Do(t, os.MkdirAll(filepath.Dir(library), 0o755))
	must.Do(t, os.WriteFile(library, nil, 0o644))
	expect.Equal(t, of(), library)
	expect.Equal(t, libraryOf(func() (string, error) { return "", errors.New("unknown") }), api.DefaultLibrary, "of an unknown executable")
}
