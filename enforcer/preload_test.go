// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"strings"
	"testing"

	"github.com/moby/sys/mountinfo"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

func TestPlaceOfAContainersPreloadFile(t *testing.T) {
	const (
		root    = "65 43 254:0 /rootfs / rw - ext4 /dev/vda rw\n"
		hosts   = "68 65 254:0 /hosts /etc/hosts rw - ext4 /dev/vda rw\n"
		preload = "71 65 0:25 /gpuslice/slices/77-ab/ld.so.preload %s ro,nosuid,nodev - tmpfs tmpfs rw\n"
		other   = "72 65 0:25 /gpuslice/slices/78-cd/ld.so.preload /etc/ld.so.preload ro - tmpfs tmpfs rw\n"
	)
	at := func(path string) string { return strings.Replace(preload, "%s", path, 1) }
	for mounts, want := range map[string]api.Preload{
		root + hosts + at("/etc/ld.so.preload"):  api.PreloadBound,
		root + hosts + at("/etc2/ld.so.preload"): api.PreloadMoved,
		root + hosts:                             api.PreloadNone,
		"":                                       api.PreloadNone,
		root + other:                             api.PreloadNone,
		root + at("/etc/ld.so.preload") + "80 65 0:40 / /etc rw - tmpfs none rw\n":                api.PreloadCovered,
		root + at("/etc/ld.so.preload") + "80 71 0:40 /x /etc/ld.so.preload rw - tmpfs none rw\n": api.PreloadCovered,
		root + at("/etc/ld.so.preload") + "80 65 0:40 / /etc/volume rw - tmpfs none rw\n":         api.PreloadBound,
		root + at("/etc/ld.so.preload") + "80 65 0:40 / /et rw - tmpfs none rw\n":                 api.PreloadBound,
		"64 65 254:0 /rootfs / rw - ext4 /dev/vda rw\n" + root + at("/etc/ld.so.preload"):         api.PreloadBound,
		root + at("/etc\\040x/ld.so.preload"):                                                     api.PreloadMoved,
	} {
		list := must.Get(mountinfo.GetMountsFromReader(strings.NewReader(mounts), nil))(t)
		expect.Equal(t, findPreload(list, "77-ab"), want, mounts)
	}
}
