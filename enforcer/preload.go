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

// maxMountinfo is how much is read of a process's mounts, of which it can have any number.
const maxMountinfo = 256 << 10

// preloadOf says where a process of a container has the file that would have loaded the interceptor; "" if that is not known. The kernel's list of
// mounts says it: to open the file would wait for file systems that are the container's.
func (s *slice) preloadOf(pid int) api.Preload {
	if s.request.Session { // LD_PRELOAD carries it
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

// findPreload finds it in what a process has mounted, as it sees it; dir is the name of the slice's directory.
func findPreload(mounts []*mountinfo.Info, dir string) api.Preload {
	at := slices.IndexFunc(mounts, func(m *mountinfo.Info) bool {
		return strings.HasSuffix(m.Root, "/"+dir+"/"+api.PreloadName)
	})
	if at < 0 {
		return api.PreloadNone
	}
	place := mounts[at].Mountpoint
	covers := func(m *mountinfo.Info) bool { // the hook binds on the root's own mount: so it is older than what is mounted on the way
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
