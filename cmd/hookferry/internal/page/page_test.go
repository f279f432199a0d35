package page

import (
	"testing"

	"github.com/hookferry/analytics/internal/ui/uitest"
)

func TestFilesUseOnlyEmbeddedFiles(t *testing.T) { uitest.Check(t, files()) }

// TestPageStaysSmall bounds the size of the whole page in the binary.
func TestPageStaysSmall(t *testing.T) {
	const bound = 205_000
	sum := 0
	for _, content := range files() {
		sum += len(content)
	}
	t.Logf("%d bytes", sum)
	if sum > bound {
		t.Errorf("the files of the page have %d bytes, want at most %d", sum, bound)
	}
}
