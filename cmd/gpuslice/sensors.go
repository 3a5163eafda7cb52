// SPDX-License-Identifier: Apache-2.0

package main

import (
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/driver"
)

const (
	sensorsEvery   = time.Second
	sensorsTimeout = time.Second // the driver can hang
)

// sensors reads the devices of this host from the driver, at most once in sensorsEvery: gpusliced shows no devices to unprivileged
// users. It gives up after sensorsTimeout, so that a hung driver does not block the caller.
type sensors struct {
	slot driver.Slot

	// The fields below belong to the call that has the slot.
	nvml    *driver.NVML
	devices []api.Device // without granted bytes, which the driver does not know
	values  map[string]driver.Sensors
	at      time.Time
}

// read returns the devices, and their sensor values by UUID. Both are nil if the driver does not answer within sensorsTimeout.
func (s *sensors) read() ([]api.Device, map[string]driver.Sensors) {
	type answer struct {
		devices []api.Device
		sensors map[string]driver.Sensors
	}
	a, err := driver.Ask(s.slot, sensorsTimeout, func() (answer, error) {
		if time.Since(s.at) >= sensorsEvery {
			s.refresh()
			s.at = time.Now()
		}
		return answer{s.devices, s.values}, nil
	})
	if err != nil {
		return nil, nil
	}
	return a.devices, a.sensors
}

// refresh reads devices and values anew. Without a driver they are nil. Called with the slot held.
func (s *sensors) refresh() {
	s.devices, s.values = nil, nil
	if s.nvml == nil {
		nvml, err := driver.Open()
		if err != nil {
			return
		}
		s.nvml = nvml // until this process ends
	}
	found, _ := s.nvml.Devices() // those that can be read
	s.values = make(map[string]driver.Sensors)
	for _, d := range found {
		device := api.Device{UUID: d.UUID, Index: d.Index, Name: d.Name, Total: d.Total}
		if used, err := s.nvml.Used(d.UUID); err == nil {
			device.Used = &used
		}
		s.devices = append(s.devices, device)
		s.values[d.UUID] = s.nvml.Sensors(d.UUID)
	}
}
