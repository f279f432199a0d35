package store_test

import (
	"os"
	"regexp"
	"slices"
	"testing"

	"github.com/hookferry/analytics/webhook/store"
)

func TestReasonsAndStatesHaveEachOnce(t *testing.T) {
	checkAll(t, "reason.go", "Reason", store.Reasons())
	checkAll(t, "list.go", "State", store.States())
}

// checkAll checks that a list has each constant of a type that the file declares, once.
func checkAll[T ~string](t *testing.T, file, typ string, list []T) {
	t.Helper()
	source, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var want []T
	for _, m := range regexp.MustCompile(`(?m)^\t`+typ+`\w+ +`+typ+` = "(\w+)"`).FindAllSubmatch(source, -1) {
		want = append(want, T(m[1]))
	}
	if got := slices.Sorted(slices.Values(list)); len(want) < 5 || !slices.Equal(got, slices.Sorted(slices.Values(want))) {
		t.Errorf("the list of each %s is %q, want %q", typ, got, want)
	}
}
