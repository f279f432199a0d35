package main_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// An event whose answer was lost comes again, and is applied once. docs/start-receiving.md shows what is
// printed.
func TestEventIsAppliedOnce(t *testing.T) {
	out, err := exec.Command("go", "run", ".").CombinedOutput()
	const want = "applied, but the answer is lost\nanswered 204\nann has paid 1250\n"
	if err != nil || string(out) != want {
		t.Errorf("%v, printed\n%s\nwant\n%s", err, out, want)
	}
	page, err := os.ReadFile("../../docs/start-receiving.md")
	if err != nil || !strings.Contains(string(page), "```text\n"+want+"```\n") {
		t.Errorf("docs/start-receiving.md does not show this output: %v", err)
	}
}
