package pgqueue

import (
	"testing"

	"github.com/hookferry/analytics/internal/testkit"
)

func TestNegativeConfig(t *testing.T) {
	testkit.Negative(t, Config{}, func(c Config) error { return c.complete() })
}
