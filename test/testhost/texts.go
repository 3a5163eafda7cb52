// SPDX-License-Identifier: Apache-2.0

package testhost

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// LastLine returns the last whole line.
func LastLine(text string) string {
	end := strings.LastIndexByte(text, '\n')
	if end < 0 {
		return ""
	}
	return text[strings.LastIndexByte(text[:end], '\n')+1 : end]
}

// KillPoints returns the kill points in the sources below directories of root.
func KillPoints(root string, dirs ...string) (points []string, err error) {
	call := regexp.MustCompile(`(killpoint\.P|q\.p|l\.p)ass\("([a-z.-]+)"\)`)
	for _, dir := range dirs {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			for _, m := range call.FindAllSubmatch(text, -1) {
				switch point := string(m[2]); string(m[1]) {
				case "q.p": // of a slice and of a pool
					points = append(points, point, strings.Replace(point, ".", ".pool.", 1))
				case "l.p": // of a lease's first broker and of a replacement
					points = append(points, "acquire."+point, "restart."+point)
				default:
					points = append(points, point)
				}
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	slices.Sort(points)
	return slices.Compact(points), nil
}
