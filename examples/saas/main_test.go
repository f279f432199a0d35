package main_test

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hookferry/analytics/internal/pgtest"
)

// The shop sends the same events from a folder and from PostgreSQL.
func TestShop(t *testing.T) {
	program := filepath.Join(t.TempDir(), "saas")
	if out, err := exec.Command("go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, tt := range []struct {
		name string
		args func(t *testing.T) []string
	}{
		{"folder", func(*testing.T) []string { return nil }},
		{"postgres", func(t *testing.T) []string { return []string{"-postgres", pgtest.New(t, "fsync=off").URL()} }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			out, err := exec.Command(program, tt.args(t)...).CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			for _, want := range []string{
				"order-1 of acme: an event for 1 of its URLs\n", "order-4 of initech: an event for 0 of its URLs\n",
				`acme got {"type":"order.placed",`, `"data":{"id":"order-2","buyer":"bob","total":40}}`, `"data":{"id":"order-3","buyer":"bob","total":7}}`,
			} {
				if !strings.Contains(string(out), want) {
					t.Errorf("the shop printed\n%s\nwant %s", out, want)
				}
			}
		})
	}
}
