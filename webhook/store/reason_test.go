package store_test

import (
	"os"
	"regexp"
	"slices"
	"testing"

	"github.com/hookferry/analytics/webhook/store"
)

func TestReasonsHasEachReasonOnce(t *testing.T) {
	source, err := os.ReadFile("reason.go")
	if err != nil {
		t.Fatal(err)
	}
	var want []store.Reason
	for _, m := range regexp.MustCompile(`(?m)^\tReason\w+ +Reason = "(\w+)"`).FindAllSubmatch(source, -1) {
		want = append(want, store.Reason(m[1]))
	}
	if got := slices.Sorted(slices.Values(store.Reasons())); len(want) < 14 || !slices.Equal(got, slices.Sorted(slices.Values(want))) {
		t.Errorf("Reasons() = %q, want %q", got, want)
	}
}
