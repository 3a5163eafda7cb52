// SPDX-License-Identifier: Apache-2.0

package enforcer_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer"
	"github.com/gpuslice/gpuslice/enforcer/driver"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

const (
	gpu2   = "GPU-00000000-0000-0000-0000-0000000000a2" // in MIG mode
	mig0   = "MIG-00000000-0000-0000-0000-0000000000b0"
	mig1   = "MIG-00000000-0000-0000-0000-0000000000b1"
	absent = "GPU-00000000-0000-0000-0000-0000000000ff"
)

// machine is a driver with two GPUs, with minor numbers that differ from their indices, and two instances of a third.
type machine struct{}

func (machine) Devices() ([]driver.Device, error) {
	devices := []driver.Device{
		{UUID: gpu0, Index: 0, Minor: 1}, {UUID: gpu1, Index: 1, Minor: 0},
		{UUID: mig0, Index: -1, Minor: 2, Parent: gpu2}, {UUID: mig1, Index: -1, Minor: 2, Parent: gpu2},
	}
	for i := range devices {
		uuid, err := driver.ParseUUID(devices[i].UUID)
		if err != nil {
			return nil, err
		}
		devices[i].Raw, devices[i].Name, devices[i].Total = uuid.Raw, model, 80*gib
	}
	return devices, nil
}

func (machine) Processes(string) (map[int]uint64, error) { return nil, nil }
func (machine) Used(string) (uint64, error)              { return 0, nil }
func (machine) DriverVersion() string                    { return "0" }

func (machine) Busy(string, time.Time) (map[int]uint32, error) { return nil, nil }

func newMachine(t *testing.T) *host {
	t.Helper()
	h := newHost(t, nil)
	h.with(func(o *enforcer.Options) { o.Truth = machine{} })
	return h
}

func (h *host) sees(id string, p *proc, names []string, quotas ...api.Quota) (api.RegisterReply, error) {
	return h.Register(context.Background(), api.RegisterRequest{ID: id, Quotas: quotas, Session: true, PID: p.pid(), Visible: names})
}

func visibleUUIDs(s api.Slice) (uuids []string) {
	for _, d := range s.Devices {
		uuids = append(uuids, d.Device)
	}
	return uuids
}

func TestAQuotaCountsOnTheDevicesThatTheContainerSees(t *testing.T) {
	h := newMachine(t)
	all := []string{gpu0, gpu1, mig0, mig1}
	for _, c := range []struct {
		names, want []string
	}{
		{nil, all},
		{[]string{}, all},
		{[]string{"0"}, []string{gpu0}},
		{[]string{"minor:0"}, []string{gpu1}}, // which is not index 0
		{[]string{"minor:1", "0"}, []string{gpu0}},
		{[]string{strings.ToLower(gpu1)}, []string{gpu1}},
		{[]string{"1", mig1}, []string{gpu1, mig1}},
		{[]string{"minor:2"}, []string{mig0, mig1}},
		{[]string{gpu2}, []string{mig0, mig1}},
		{[]string{"minor:2", mig1}, []string{mig1}}, // the node by which that instance is reached
		{[]string{"minor:0", "minor:2", mig1}, []string{gpu1, mig1}},
		// A name that is unknown here may be any device.
		{[]string{"0", "7"}, all},
		{[]string{"0", absent}, all},
		{[]string{"0", "minor:9"}, all},
	} {
		p := start(t, t.TempDir(), "")
		reply, err := h.sees("s", p, c.names, on(api.AllDevices, 4*gib))
		if err != nil {
			t.Errorf("%q: %v", c.names, err)
			continue
		}
		expect.EqualSlices(t, visibleUUIDs(reply.Slice), c.want, c.names, "counts on")
		for _, d := range must.Get(h.Devices(t.Context()))(t) {
			expect.Equal(t, d.Quotas == 4*gib, slices.Contains(c.want, d.UUID), c.names, "on", d.UUID, "are quotas of", d.Quotas, "bytes")
		}
		must.Get(h.Release(t.Context(), "s", 0, true))(t)
		p.kill()
	}
}

func TestQuotaOnAnInvisibleDeviceIsRefused(t *testing.T) {
	h := newMachine(t)
	p := start(t, t.TempDir(), "")
	for _, c := range []struct {
		device string
		says   string
	}{
		{"1", "there is a quota on device 1 (" + gpu1 + "), which s does not use: it sees only 0 (" + gpu0 + "), " + mig1},
		{gpu1, "there is a quota on device " + gpu1 + ", which s does not use: it sees only 0 (" + gpu0 + "), " + mig1},
		{mig0, "device " + mig0},
	} {
		_, err := h.sees("s", p, []string{"minor:1", mig1}, on(api.AllDevices, gib), on(c.device, gib))
		if !errors.Is(err, api.ErrNoDevice) || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v; want %q", c.device, err, c.says)
		}
	}
	expect.NoError(t, must.Err(h.sees("s", p, []string{"minor:1", mig1}, on("0", gib), on(mig1, gib))), "quotas on what is seen")
}

func TestQuotaAppliesToADeviceFirstSeenLater(t *testing.T) {
	h := newHost(t, &fakeTruth{})
	link := t.TempDir() + "/bind"
	p := start(t, link, "")
	reply := must.Get(h.sees("s", p, []string{gpu0}, on(api.AllDevices, 4*gib)))(t)
	lead(t, link, reply)
	check := func(when string, want ...string) {
		t.Helper()
		expect.EqualSlices(t, visibleUUIDs(h.see("s")), want, when, "counts on")
	}
	p.must("attach")
	check("at first", gpu0)
	index := p.must("device %s %d", hex1, 80*gib)
	p.must("charge %d %d", index, 4*gib)
	p.expect("refused", "charge %d 1", index)
	check("once another was used", gpu0, gpu1)
	h.restart()
	check("after a restart", gpu0, gpu1)
	p.expect("refused", "charge %d 1", index)
}

func TestVisibleDevicesSurviveARestart(t *testing.T) {
	h := newMachine(t)
	p := start(t, t.TempDir(), "") // it never attaches, so the restarted enforcer makes a new ledger
	must.Get(h.sees("s", p, []string{"1"}, on(api.AllDevices, 4*gib)))(t)
	h.restart()
	expect.EqualSlices(t, visibleUUIDs(h.see("s")), []string{gpu1}, "after a restart it counts on")
}

// The store has requests as JSON, and an older hook may ask a newer enforcer.
func TestRequestWithoutVisibleSeesAllDevices(t *testing.T) {
	var r api.RegisterRequest
	old := `{"id":"s","quotas":[{"device":"*","bytes":1073741824}],"mode":"enforce","pid":1,"session":true}`
	if err := json.Unmarshal([]byte(old), &r); err != nil || r.Visible != nil {
		t.Fatalf("%+v, %v", r, err)
	}
	again := must.Get(json.Marshal(r))(t)
	expect.Equal(t, string(again), old, "it is kept as")
	h := newMachine(t)
	r.PID = start(t, t.TempDir(), "").pid()
	reply, err := h.Register(t.Context(), r)
	if err != nil || len(reply.Slice.Devices) != 4 {
		t.Errorf("it counts on %q, %v", visibleUUIDs(reply.Slice), err)
	}
}

func TestWithoutNVMLVisibleDevicesAreUnknown(t *testing.T) {
	h := newHost(t, nil)
	p := start(t, t.TempDir(), "")
	expect.NoError(t, must.Err(h.sees("s", p, []string{"minor:0", gpu1}, on(gpu0, gib))))
}
