package main_test

import (
	"os/exec"
	"testing"
)

// An event whose answer was lost comes again, and is applied once.
func TestEventIsAppliedOnce(t *testing.T) {
	out, err := exec.Command("go", "run", ".").CombinedOutput()
	const want = "applied, but the answer is lost\nanswered 204\nann has paid 1250\n"
	if err != nil || string(out) != want {
		t.Errorf("%v, printed\n%s\nwant\n%s", err, out, want)
	}
}
