package filequeue

import (
	"testing"

	"github.com/hookferry/analytics/internal/testkit"
)

func TestNegativeConfig(t *testing.T) {
	testkit.Negative(t, Config{}, func(c Config) error {
		_, err := c.withDefaults()
		return err
	}, "MaxBytes", "HistoryAge", "HistoryBytes")
}
