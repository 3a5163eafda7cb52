// SPDX-License-Identifier: Apache-2.0

package devices

import (
	"errors"
	"testing"
	"time"

	"github.com/gpuslice/gpuslice/enforcer/driver"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

// source has one GPU with two instances, and counts the lists of processes.
type source struct {
	lists int
	fails error
}

func (s *source) Devices() ([]driver.Device, error) {
	return []driver.Device{{UUID: "GPU-0", Index: 0, Name: "H100", Total: 80}, {UUID: "MIG-1", Index: 1, Parent: "GPU-1", Minor: 1}, {UUID: "MIG-2", Index: 2, Parent: "GPU-1", Minor: 1}}, nil
}

func (s *source) Processes(string) (map[int]uint64, error) {
	s.lists++
	return map[int]uint64{7: 30, 8: 10}, s.fails
}

func (s *source) Used(string) (uint64, error)                    { return 50, nil }
func (s *source) Busy(string, time.Time) (map[int]uint32, error) { return nil, nil }
func (s *source) DriverVersion() string                          { return "580" }
func open(t *testing.T, s *source, contexts map[string]uint64) *Devices {
	return must.Get(Open(s, contexts, func(err error) { t.Error(err) }))(t)
}

func TestAGPUInMIGModeIsNamedByItsInstances(t *testing.T) {
	d := open(t, &source{}, nil)
	for name, want := range map[string]int{"0": 1, "GPU-0": 1, "GPU-1": 2, "MIG-2": 1, "9": 0} {
		must.Len(t, d.named(name), want, name)
	}
	must.Len(t, d.ofMinor(1), 2, "instances of minor 1")
	expect.Equal(t, d.Of("GPU-0").Called("GPU-0"), "0 (GPU-0)")
	must.Len(t, (*Devices)(nil).All(), 0, "without driver truth")
}

func TestTheLeastCostOfAContextIsPublishedOnce(t *testing.T) {
	d := open(t, &source{}, map[string]uint64{"H100, driver 580": 500})
	g := d.Of("GPU-0")
	d.Learn(g, 600)
	expect.True(t, !g.BeginPublish(), "a higher cost is published")
	d.Learn(g, 400)
	expect.True(t, g.BeginPublish() && !g.BeginPublish(), "a lower cost is published %d times")
	g.EndPublish()
	_, cost := d.Context(g)
	expect.Equal(t, cost, 400)
	d.Learn(d.Of("MIG-1"), 300) // it has no name
	expect.True(t, !d.Of("MIG-1").BeginPublish(), "the cost on an unnamed device is published")
}

func TestTheDriverIsAskedForMemoryInUseOnceInAnInterval(t *testing.T) {
	s := &source{}
	g := open(t, s, nil).Of("GPU-0")
	inSlice := func(pid int) bool { return pid == 8 }
	for range 3 {
		u, known := g.InUse(time.Hour, inSlice)
		expect.True(t, known && u.Used == 50 && len(u.Outside) == 1 && u.Outside[7] == 30, "%+v %v")
	}
	expect.Equal(t, s.lists, 1, "queries")
	other := open(t, s, nil).Of("GPU-0")
	s.fails = errors.New("it fails")
	_, known := other.InUse(time.Hour, inSlice)
	expect.True(t, !known, "a failed query has an answer")
}

func TestAChangeOfTheDriversAnswersIsReportedOnce(t *testing.T) {
	g := open(t, &source{}, nil).Of("GPU-0")
	fails := errors.New("it fails")
	expect.True(t, !g.Asked(nil) && g.Asked(fails) && !g.Asked(fails) && !g.Answers(), "the first failure is the change")
	_, failures := g.Silence()
	expect.Equal(t, failures, 2)
	expect.True(t, g.Asked(nil) && g.Answers(), "the first answer is the change")
}
