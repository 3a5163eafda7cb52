// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"path/filepath"
)

func (h Host) engines(add adder) {
	if h.Engines == nil {
		return
	}
	found := h.Engines()
	for _, e := range found {
		install := "`sudo gpuslice install " + e.Name + "`"
		if e.Reload != "" {
			install += ", then `sudo " + e.Reload + "`"
		}
		switch {
		case add.denied("engine", e.Name+": you may not read its configuration", e.Err):
		case e.Err != nil:
			add("engine", Warn, e.Err.Error(), "see `gpuslice install "+e.Name+" --dry-run`")
		case !e.Registered:
			add("engine", Warn, e.Name+" does not know the runtime gpuslice, or with other settings than those of its default one", install)
		case e.Stale != "":
			add("engine", Warn, e.Name+" runs with an older configuration: the runtime gpuslice was configured since, and it was not reloaded", "`sudo "+e.Stale+"`")
		case e.Default:
			add("engine", OK, e.Name+": the runtime gpuslice is configured, and is the default", "")
		default:
			add("engine", OK, e.Name+": the runtime gpuslice is configured, and is not the default: a container that does not name it has no quota (`gpuslice install "+e.Name+" --set-as-default`)", "")
		}
		unannotated(e, add)
	}
	if len(found) > 0 && h.exists("/dev/nvidiactl") {
		h.toolkit(add)
	}
}

func unannotated(e Engine, add adder) {
	switch {
	case e.Unannotated == "":
	case e.Variables == "":
		add("engine", OK, e.Unannotated, "")
	default:
		add("engine", Warn, e.Unannotated, e.Variables)
	}
}

// toolkit looks for a component that gives containers the driver and the devices.
func (h Host) toolkit(add adder) {
	for _, dir := range []string{"/etc/cdi", "/var/run/cdi"} {
		for _, pattern := range []string{"*nvidia*.yaml", "*nvidia*.json"} {
			if specs, _ := filepath.Glob(filepath.Join(h.path(dir), pattern)); len(specs) > 0 {
				add("toolkit", OK, "CDI describes NVIDIA's devices: "+filepath.Join(dir, filepath.Base(specs[0])), "")
				return
			}
		}
	}
	if path, err := h.LookPath("nvidia-container-runtime-hook"); err == nil {
		add("toolkit", OK, path+"; there is no CDI specification (`sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml`)", "")
		return
	}
	add("toolkit", Warn, "neither NVIDIA's container toolkit nor a CDI specification is here: no engine can give a container a GPU",
		"install nvidia-container-toolkit, then `sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml`")
}
