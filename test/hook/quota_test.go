// SPDX-License-Identifier: Apache-2.0

package hook_test

import (
	"encoding/json"
	"testing"

	"github.com/gpuslice/gpuslice/test/must"
)

// Files of the image must not affect the quota, even at paths that are read elsewhere.
func TestNoFileOfTheImageSaysAnythingOfTheQuota(t *testing.T) {
	forEachRuntime(t, func(t *testing.T, r runtime) {
		e := startEnforcer(t)
		b := newBundle(t, id(t), fourGiB, nil)
		config := must.Get(json.Marshal(object{"annotations": object{"gpuslice.vram": "40G", "gpuslice.mode": "record"}}))(t)
		mkdir(t, b.rootfs("etc", "gpuslice"))
		mkdir(t, b.rootfs("run", "gpuslice"))
		write(t, b.rootfs("etc", "gpuslice", "config.toml"), "[runtime]\nmissing = \"pass\"\ndefault_vram = \"40G\"\nallow_env = true\n")
		for _, name := range []string{b.rootfs("config.json"), b.rootfs("etc", "config.json"), b.rootfs("run", "gpuslice", "config.json")} {
			write(t, name, string(config))
		}
		b.config["process"].(object)["env"] = []string{"PATH=/bin", "GPUSLICE_CONFIG=/etc/gpuslice/config.toml", "GPUSLICE_VRAM=40G", "GPUSLICE_MODE=record"}
		b.save(t)
		c := newContainer(t, r, id(t), b)
		ours(t, e, c)
		c.start()
		if len(e.registered) != 1 || len(e.registered[0].Quotas) != 1 || e.registered[0].Quotas[0].Bytes != 4<<30 || e.registered[0].Mode == "record" {
			t.Errorf("registered %+v", e.registered)
		}
		c.remove()
	})
}
