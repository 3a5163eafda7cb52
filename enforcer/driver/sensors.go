// SPDX-License-Identifier: Apache-2.0

package driver

import "github.com/NVIDIA/go-nvml/pkg/nvml"

// Sensors is what a device reports of itself.
type Sensors struct {
	Busy         Reading // percent of the last sample period in which a kernel ran
	Temperature  Reading // °C
	Power, Limit Reading // milliwatts; Limit is the most that the device draws
}

// Reading is a figure that not every device reports.
type Reading struct {
	Value uint32
	Known bool
}

// Sensors reads a device's sensors. They are all unknown for a MIG instance, which has none of its own.
func (n *NVML) Sensors(uuid string) Sensors {
	device, err := n.handle(uuid)
	if err != nil {
		return Sensors{}
	}
	read := func(symbol string, from func() (uint32, nvml.Return)) Reading {
		if n.has(symbol) {
			if value, ret := from(); ret == nvml.SUCCESS {
				return Reading{value, true}
			}
		}
		return Reading{}
	}
	return Sensors{
		Busy: read("nvmlDeviceGetUtilizationRates", func() (uint32, nvml.Return) {
			rates, ret := device.GetUtilizationRates()
			return rates.Gpu, ret
		}),
		Temperature: read("nvmlDeviceGetTemperature", func() (uint32, nvml.Return) { return device.GetTemperature(nvml.TEMPERATURE_GPU) }),
		Power:       read("nvmlDeviceGetPowerUsage", device.GetPowerUsage),
		Limit:       read("nvmlDeviceGetEnforcedPowerLimit", device.GetEnforcedPowerLimit),
	}
}
