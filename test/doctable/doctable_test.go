// SPDX-License-Identifier: Apache-2.0

package doctable

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

func TestTheTableIsReplacedAndNothingElse(t *testing.T) {
	document := filepath.Join(t.TempDir(), "document.md")
	const before, after = "# Title\n\n", "\nThe rest.\n"
	must.Do(t, os.WriteFile(document, []byte(before+begin+"| old |\n"+end+after), 0o600))
	if got, err := Read(document); got != "| old |\n" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	for _, table := range []string{"| new |\n|---|\n", ""} {
		must.Do(t, Write(document, table))
		if got, err := os.ReadFile(document); string(got) != before+begin+table+end+after || err != nil {
			t.Errorf("%q, %v", got, err)
		}
	}
}

func TestADocumentWithoutAPlaceIsLeftAsItIs(t *testing.T) {
	document := filepath.Join(t.TempDir(), "document.md")
	for _, text := range []string{"", begin, end, end + begin, "x" + begin[:len(begin)-1]} {
		must.Do(t, os.WriteFile(document, []byte(text), 0o600))
		if got, err := Read(document); err == nil {
			t.Errorf("%q: read %q", text, got)
		}
		expect.Error(t, Write(document, "table\n"), text, "was written")
		if got, err := os.ReadFile(document); string(got) != text || err != nil {
			t.Errorf("%q became %q, %v", text, got, err)
		}
	}
	if err := Write(filepath.Join(t.TempDir(), "none.md"), "table\n"); !os.IsNotExist(err) {
		t.Errorf("no document: %v", err)
	}
}
