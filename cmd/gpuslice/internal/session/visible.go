// SPDX-License-Identifier: Apache-2.0

package session

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuslice/gpuslice/api"
)

// CUDA shows the devices listed in visibleEnv, in that order; orderEnv defines the order of its indices.
const (
	visibleEnv = "CUDA_VISIBLE_DEVICES"
	orderEnv   = "CUDA_DEVICE_ORDER"
)

// show returns env with only the session's devices visible to CUDA. It lists them by UUID, in the order of --device, or of the
// caller's CUDA_VISIBLE_DEVICES if set. For a session on all devices it returns env unchanged.
func (s *Session) show(env []string, slice *api.Slice) ([]string, error) {
	devices := devicesOf(slice)
	if len(devices) == 0 {
		return env, nil
	}
	visible := devices
	if own, ok := lookup(env, visibleEnv); ok {
		listed, err := s.listed(env, own, devices)
		if err != nil {
			return nil, err
		}
		if visible = intersect(listed, devices); len(visible) == 0 || s.Token == "" && len(visible) < len(devices) {
			return nil, fmt.Errorf("%s=%s leaves out %s, a device of this session: list it there by its UUID, or unset %s",
				visibleEnv, own, strings.Join(without(devices, visible), ", "), visibleEnv)
		}
	}
	env = slices.DeleteFunc(slices.Clone(env), func(entry string) bool { return strings.HasPrefix(entry, visibleEnv+"=") })
	return append(env, visibleEnv+"="+strings.Join(visible, ",")), nil
}

// devicesOf returns the UUIDs of a session's devices; none means all. In record mode the enforcer adds all others itself.
func devicesOf(slice *api.Slice) []string {
	var devices []string
	for _, q := range slice.Quotas {
		switch {
		case q.Device != api.AllDevices:
			devices = append(devices, q.Device)
		case slice.Mode != api.Record:
			return nil
		}
	}
	return devices
}

// listed returns the UUIDs of the devices in a value of CUDA_VISIBLE_DEVICES. Like CUDA it accepts indices and UUIDs, also
// shortened, up to the first invalid entry. It finds the session's devices without a list of the host's.
func (s *Session) listed(env []string, value string, devices []string) ([]string, error) {
	host, hostErr := s.Devices()
	var uuids []string
	for entry := range strings.SplitSeq(value, ",") {
		entry = strings.TrimSpace(entry)
		var uuid string
		if index, err := strconv.Atoi(entry); err == nil {
			if hostErr != nil {
				return nil, fmt.Errorf("%s=%s has an index, and the devices cannot be counted: %w (list UUIDs there, or unset it)", visibleEnv, value, hostErr)
			}
			if !sameOrder(env, host) {
				return nil, fmt.Errorf("%s=%s has an index, and CUDA may count different models in another order than NVML: list UUIDs there, or set %s=PCI_BUS_ID",
					visibleEnv, value, orderEnv)
			}
			uuid = ofIndex(host, index)
		} else {
			uuid = ofPrefix(host, devices, entry)
		}
		if uuid == "" {
			break
		}
		uuids = append(uuids, uuid)
	}
	return uuids, nil
}

// sameOrder reports whether CUDA's indices are those of NVML. CUDA lists the fastest device first, unless orderEnv selects the
// order on the bus. MIG instances have no index.
func sameOrder(env []string, host []api.Device) bool {
	if order, _ := lookup(env, orderEnv); order == "PCI_BUS_ID" {
		return true
	}
	name := ""
	return !slices.ContainsFunc(host, func(d api.Device) bool {
		if d.Index < 0 {
			return false
		}
		other := name != "" && d.Name != name
		name = d.Name
		return other
	})
}

func ofIndex(host []api.Device, index int) string {
	for _, d := range host {
		if index >= 0 && d.Index == index {
			return d.UUID
		}
	}
	return ""
}

// ofPrefix returns the only device with this prefix of its UUID, or "" for none or several.
func ofPrefix(host []api.Device, devices []string, prefix string) string {
	if len(prefix) <= len("GPU-") {
		return ""
	}
	all := slices.Clone(devices)
	for _, d := range host {
		all = append(all, d.UUID)
	}
	found := ""
	for _, uuid := range all {
		if len(uuid) < len(prefix) || !strings.EqualFold(uuid[:len(prefix)], prefix) || uuid == found {
			continue
		}
		if found != "" {
			return ""
		}
		found = uuid
	}
	return found
}

func intersect(listed, devices []string) []string {
	var both []string
	for _, uuid := range listed {
		if slices.Contains(devices, uuid) && !slices.Contains(both, uuid) {
			both = append(both, uuid)
		}
	}
	return both
}

func without(devices, shown []string) []string {
	return slices.DeleteFunc(slices.Clone(devices), func(uuid string) bool { return slices.Contains(shown, uuid) })
}
