//go:build engines

// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

// images are root filesystems in the cache's images/NAME and images/NAME.tar, each with a shell:
//
//	debian   Debian 12 by debootstrap: glibc, and a setuid su
//	busybox  busybox, static, and nothing else
//	musl     musl and busybox
var images = []string{"debian", "busybox", "musl"}

// pauseImage is busybox with a command that stays, for the sandboxes of pods.
const pauseImage = "pause"

// imageRef is the name under which engines know an image.
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

// imageArchive is an image as `docker save` writes it and every engine loads it. It is made once for all engines.
func imageArchive(t testing.TB, name string) string {
	t.Helper()
	archives.Lock()
	defer archives.Unlock()
	if path := archives.paths[name]; path != "" {
		return path
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
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
	layer, err := os.Open(tool(t, "images", root+".tar"))
	must(err)
	defer layer.Close()
	sum := sha256.New()
	size, err := io.Copy(sum, layer)
	must(err)
	_, err = layer.Seek(0, io.SeekStart)
	must(err)
	type object = map[string]any
	config, err := json.Marshal(object{
		"architecture": "amd64", "os": "linux", "created": "2024-01-01T00:00:00Z",
		"config":  object{"Cmd": command, "Env": []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}},
		"rootfs":  object{"type": "layers", "diff_ids": []string{"sha256:" + hex.EncodeToString(sum.Sum(nil))}},
		"history": []object{{"created": "2024-01-01T00:00:00Z", "created_by": "test"}},
	})
	must(err)
	manifest, err := json.Marshal([]object{{"Config": "config.json", "RepoTags": []string{imageRef(name)}, "Layers": []string{"layer.tar"}}})
	must(err)

	path := filepath.Join(archives.dir, name+".tar")
	file, err := os.Create(path)
	must(err)
	defer file.Close()
	w := tar.NewWriter(file)
	put := func(name string, text []byte) {
		must(w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(text))}))
		_, err := w.Write(text)
		must(err)
	}
	put("config.json", config)
	put("manifest.json", manifest)
	must(w.WriteHeader(&tar.Header{Name: "layer.tar", Mode: 0o644, Size: size}))
	_, err = io.Copy(w, layer)
	must(err)
	must(w.Close())
	archives.paths[name] = path
	return path
}
