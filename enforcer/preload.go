// SPDX-License-Identifier: Apache-2.0

package enforcer

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/enforcer/guard"
)

// maxMountinfo limits the bytes read of a process's mounts: it can have any number of them.
const maxMountinfo = 256 << 10

// preloadOf returns the state of the file that loads the interceptor, as a container's process sees it; "" if unknown. It reads the kernel's list of
// mounts, since opening the file could block in the container's file systems.
func (s *slice) preloadOf(pid int) api.Preload {
	if s.request.Session { // LD_PRELOAD is used
		return ""
	}
	guard.MayWait("a process's files")
	file, err := os.Open(fmt.Sprintf("/proc/%d/mountinfo", pid))
	if err != nil {
		return ""
	}
	defer file.Close()
	list := &io.LimitedReader{R: file, N: maxMountinfo}
	mounts, err := mountinfo.GetMountsFromReader(list, nil) // none in a chroot
	if err != nil || list.N == 0 {
		return ""
	}
	return findPreload(mounts, filepath.Base(s.dir))
}

// findPreload finds that file in a process's mounts; dir is the name of the slice's directory.
func findPreload(mounts []*mountinfo.Info, dir string) api.Preload {
	at := slices.IndexFunc(mounts, func(m *mountinfo.Info) bool {
		return strings.HasSuffix(m.Root, "/"+dir+"/"+api.PreloadName)
	})
	if at < 0 {
		return api.PreloadNone
	}
	place := mounts[at].Mountpoint
	covers := func(m *mountinfo.Info) bool { // the hook binds on the root's own mount, so its mount is older than those on the way
		return m.ID != mounts[at].ID && (m.Mountpoint == place || m.Mountpoint != "/" && strings.HasPrefix(place, m.Mountpoint+"/"))
	}
	switch {
	case slices.ContainsFunc(mounts, covers):
		return api.PreloadCovered
	case place != "/etc/"+api.PreloadName:
		return api.PreloadMoved
	}
	return api.PreloadBound
}
