//go:build !race

// The race detector makes this take minutes, and sees nothing that TestGuide does
// not show it.

package main

import "testing"

// TestGuideOfAHundredBillion is TestGuide for the table that takes longest.
func TestGuideOfAHundredBillion(t *testing.T) { holds(t, "hundred billion", largeTable()) }
