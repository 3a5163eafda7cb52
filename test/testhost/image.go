// SPDX-License-Identifier: Apache-2.0

package testhost

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"os"
)

// ImageConfig is the part of an image's configuration that a container runs.
type ImageConfig struct {
	Entrypoint []string `json:",omitempty"`
	Cmd        []string `json:",omitempty"`
	Env        []string
}

// WriteImage writes a single-layer image in the format of `docker save`. layerTar is the tar of its root filesystem.
func WriteImage(path, layerTar, ref string, runs ImageConfig) (err error) {
	layer, err := os.Open(layerTar)
	if err != nil {
		return err
	}
	defer layer.Close()
	sum := sha256.New()
	size, err := io.Copy(sum, layer)
	if err != nil {
		return err
	}
	if _, err = layer.Seek(0, io.SeekStart); err != nil {
		return err
	}
	runs.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	type object = map[string]any
	config, err := json.Marshal(object{
		"architecture": "amd64", "os": "linux", "created": "2024-01-01T00:00:00Z",
		"config":  runs,
		"rootfs":  object{"type": "layers", "diff_ids": []string{"sha256:" + hex.EncodeToString(sum.Sum(nil))}},
		"history": []object{{"created": "2024-01-01T00:00:00Z", "created_by": "test"}},
	})
	if err != nil {
		return err
	}
	manifest, err := json.Marshal([]object{{"Config": "config.json", "RepoTags": []string{ref}, "Layers": []string{"layer.tar"}}})
	if err != nil {
		return err
	}
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer file.Close()
	w := tar.NewWriter(file)
	for _, f := range []struct {
		name string
		text []byte
	}{{"config.json", config}, {"manifest.json", manifest}} {
		if err := w.WriteHeader(&tar.Header{Name: f.name, Mode: 0o644, Size: int64(len(f.text))}); err != nil {
			return err
		}
		if _, err := w.Write(f.text); err != nil {
			return err
		}
	}
	if err := w.WriteHeader(&tar.Header{Name: "layer.tar", Mode: 0o644, Size: size}); err != nil {
		return err
	}
	if _, err := io.Copy(w, layer); err != nil {
		return err
	}
	return w.Close()
}
