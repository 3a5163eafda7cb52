// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"fmt"
	"runtime"
	"slices"

	"golang.org/x/sys/unix"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// call is a system call of glibc's dynamic loader; args has the arguments with known values.
type call struct {
	name string
	args map[uint]uint64
}

// loaderCalls returns the calls that read /etc/ld.so.preload and map a library: one line for each purpose, with the alternatives of
// glibc's versions. The loader calls access for the preload file alone; if that fails, it skips the file silently. The first mmap maps
// the preload file, the others map a library.
func loaderCalls() [][]call {
	access := call{"access", map[uint]uint64{1: unix.R_OK}}
	if runtime.GOARCH == "arm64" {
		access = call{"faccessat", map[uint]uint64{2: unix.R_OK}}
	}
	const flags = unix.O_RDONLY | unix.O_CLOEXEC
	mmap := func(prot, flags uint64) []call { return []call{{"mmap", map[uint]uint64{2: prot, 3: flags}}} }
	mprotect := func(prot uint64) []call { return []call{{"mprotect", map[uint]uint64{2: prot}}} }
	return [][]call{
		{access},
		{{"openat", map[uint]uint64{2: flags}}, {"open", map[uint]uint64{1: flags}}},
		{{"fstat", nil}, {"newfstatat", map[uint]uint64{3: unix.AT_EMPTY_PATH}}},
		{{"read", nil}, {"pread64", nil}},
		mmap(unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE),
		mmap(unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_DENYWRITE),
		mmap(unix.PROT_READ|unix.PROT_EXEC, unix.MAP_PRIVATE|unix.MAP_FIXED|unix.MAP_DENYWRITE),
		mmap(unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_FIXED|unix.MAP_DENYWRITE),
		mmap(unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_FIXED|unix.MAP_DENYWRITE),
		mmap(unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_FIXED|unix.MAP_ANONYMOUS),
		mprotect(unix.PROT_NONE),
		mprotect(unix.PROT_READ),
		{{"close", nil}},
	}
}

// rawFilter is an annotation by which crun takes a filter in the kernel's own language in place of the profile.
const rawFilter = "run.oci.seccomp_bpf_data"

// refuseSeccomp refuses a profile under which the loader could not preload the interceptor: it is in force when the loader runs.
func refuseSeccomp(profile *specs.LinuxSeccomp, annotations map[string]string) error {
	if _, raw := annotations[rawFilter]; raw {
		return fmt.Errorf("the annotation %s is not accepted: its filter may deny the dynamic loader a system call, and without the interceptor "+
			"processes run without the quota; use a seccomp profile instead", rawFilter)
	}
	if profile == nil {
		return nil
	}
	for _, purpose := range loaderCalls() {
		served := false
		for _, c := range purpose {
			allowed, certain := evaluate(profile, c)
			served = served || allowed
			if !certain {
				served = false
				break
			}
		}
		if !served {
			return fmt.Errorf("the container's seccomp profile denies the dynamic loader %s(2), without which it preloads no interceptor and "+
				"processes run without the quota: have the profile allow %[1]s, or leave the profile out", purpose[0].name)
		}
	}
	return nil
}

// evaluate says whether the profile allows a call. It is not certain where rules contradict each other, or depend on an argument that is not known:
// an address tells the preload file's name from others.
func evaluate(profile *specs.LinuxSeccomp, c call) (allowed, certain bool) {
	var allows, mayAllow, denies, mayDeny bool
	for _, rule := range profile.Syscalls {
		if !slices.Contains(rule.Names, c.name) {
			continue
		}
		matches, may := match(rule.Args, c.args)
		switch {
		case isAllowing(rule.Action):
			allows, mayAllow = allows || matches, mayAllow || may
		case isDenying(rule.Action):
			denies, mayDeny = denies || matches, mayDeny || may
		default: // another program decides (SCMP_ACT_NOTIFY, SCMP_ACT_TRACE), or it is not known
			mayAllow, mayDeny = mayAllow || may, mayDeny || may
		}
	}
	switch {
	case (allows || isAllowing(profile.DefaultAction)) && !mayDeny:
		return true, true
	case (denies || isDenying(profile.DefaultAction)) && !mayAllow:
		return false, true
	}
	return false, false
}

func isAllowing(a specs.LinuxSeccompAction) bool { return a == specs.ActAllow || a == specs.ActLog }

func isDenying(a specs.LinuxSeccompAction) bool {
	return a == specs.ActErrno || a == specs.ActTrap || a == specs.ActKill || a == specs.ActKillThread || a == specs.ActKillProcess
}

// match says whether the conditions are met for certain, and whether they may be. All have to be; but of several for
// one argument runc makes a rule each.
func match(conditions []specs.LinuxSeccompArg, args map[uint]uint64) (matches, may bool) {
	matches, may = true, true
	some, twice := false, false
	seen := make(map[uint]bool)
	for _, a := range conditions {
		twice = twice || seen[a.Index]
		seen[a.Index] = true
		value, known := args[a.Index]
		met := known && compare(value, a)
		matches = matches && met
		may = may && (met || !known)
		some = some || met || !known
	}
	return matches, may || twice && some
}

func compare(value uint64, a specs.LinuxSeccompArg) bool {
	switch a.Op {
	case specs.OpNotEqual:
		return value != a.Value
	case specs.OpLessThan:
		return value < a.Value
	case specs.OpLessEqual:
		return value <= a.Value
	case specs.OpEqualTo:
		return value == a.Value
	case specs.OpGreaterEqual:
		return value >= a.Value
	case specs.OpGreaterThan:
		return value > a.Value
	case specs.OpMaskedEqual:
		return value&a.Value == a.ValueTwo
	}
	return false
}
