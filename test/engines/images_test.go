//go:build engines

// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/gpuslice/gpuslice/test/must"
	"github.com/gpuslice/gpuslice/test/testhost"
)

// images are root filesystems in the cache's images/NAME and images/NAME.tar, each with a shell:
//
//	debian   Debian 12 by debootstrap: glibc, and a setuid su
//	busybox  busybox, static, and nothing else
//	musl     musl and busybox
var images = []string{"debian", "busybox", "musl"}

// pauseImage is busybox with a command that sleeps, for pod sandboxes.
const pauseImage = "pause"

func imageRef(name string) string { return "gpuslice.test/" + name + ":latest" }

var archives struct {
	sync.Mutex
	dir   string
	paths map[string]string
}

func removeImages() {
	if archives.dir != "" {
		os.RemoveAll(archives.dir)
	}
}

// imageArchive returns an image in the format of `docker save`, made once for all engines.
func imageArchive(t testing.TB, name string) string {
	t.Helper()
	archives.Lock()
	defer archives.Unlock()
	if path := archives.paths[name]; path != "" {
		return path
	}
	must := func(err error) {
		t.Helper()
		must.Do(t, err)
	}
	if archives.dir == "" {
		var err error
		archives.dir, err = os.MkdirTemp("/tmp", "gpuslice-images-")
		must(err)
		archives.paths = map[string]string{}
	}
	root, command := name, []string{"/bin/sh"}
	if name == pauseImage {
		root, command = "busybox", []string{"/bin/sleep", "1000000"}
	}
	path := filepath.Join(archives.dir, name+".tar")
	must(testhost.WriteImage(path, tool(t, "images", root+".tar"), imageRef(name), testhost.ImageConfig{Cmd: command}))
	archives.paths[name] = path
	return path
}
