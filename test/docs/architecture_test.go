// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"encoding/xml"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const maxArchitectureWords = 2500

// Who reads one page to know the whole reads one that is short.
func TestTheArchitectureIsReadInOneSitting(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "docs/architecture.md"))
	if err != nil {
		t.Fatal(err)
	}
	if words := len(strings.Fields(string(text))); words > maxArchitectureWords {
		t.Errorf("docs/architecture.md has %d words, and %d are its bound: docs/evidence/accounting.md and docs/evidence/restart.md are for the detail", words, maxArchitectureWords)
	}
}

func TestThePictureOfThePackagesNamesThemAll(t *testing.T) {
	const picture = "docs/pictures/packages.svg"
	tree, named := packagesBelow(t, filepath.Join(root, "enforcer")), packagesIn(t, filepath.Join(root, picture))
	for _, name := range tree {
		if !slices.Contains(named, name) {
			t.Errorf("%s does not name enforcer/%s", picture, name)
		}
	}
	for _, name := range named {
		if !slices.Contains(tree, name) {
			t.Errorf("%s names enforcer/%s, which is no package", picture, name)
		}
	}
}

// packagesBelow returns the packages below dir, by their paths from there, without those that only tests use.
func packagesBelow(t *testing.T, dir string) (packages []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && entry.Name() == "testdata" {
			return fs.SkipDir
		}
		if name, err := filepath.Rel(dir, filepath.Dir(path)); err != nil {
			return err
		} else if name != "." && !strings.HasSuffix(name, "test") && filepath.Ext(path) == ".go" && !slices.Contains(packages, name) {
			packages = append(packages, name)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return packages
}

// packagesIn are the texts of class "package" in a picture.
func packagesIn(t *testing.T, path string) (packages []string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var picture struct {
		Texts []struct {
			Class string `xml:"class,attr"`
			Text  string `xml:",chardata"`
		} `xml:"text"`
	}
	if err := xml.Unmarshal(text, &picture); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	for _, text := range picture.Texts {
		if text.Class == "package" {
			packages = append(packages, text.Text)
		}
	}
	return packages
}
