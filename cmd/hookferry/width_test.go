package main

import (
	"strings"
	"testing"
)

func TestColumns(t *testing.T) {
	for text, want := range map[string]int{
		"":                       0,
		"plain":                  5,
		"café":                   4,
		"cafe\u0301":             4, // with a mark of its own
		"日本語":                    6,
		"ﾆﾎﾝ":                    3, // half as wide
		"Ａ１":                     4,
		"한국어":                    6,
		"🚀 go":                   5,
		"❤\ufe0f":                1,
		"ไทย กี่":                5,
		"…–→":                    3,
		"\u20dd":                 0, // encloses
		"Ελληνικά Привет":        15,
		"नमस्ते":                 4, // of two that join some terminals make one
		"𠮷":                      2,
		strings.Repeat("界", 100): 200,
	} {
		if got := columns(text); got != want {
			t.Errorf("columns(%q) = %d, want %d", text, got, want)
		}
	}
}

func TestShorten(t *testing.T) {
	for _, tt := range []struct {
		text string
		most int
		want string
	}{
		{"plain", 5, "plain"},
		{"plain", 4, "pla…"},
		{"plain", 1, "…"},
		{"日本語", 6, "日本語"},
		{"日本語", 5, "日本…"},
		{"日本語", 4, "日…"}, // a half of one is none
		{"日本語", 2, "…"},
		{"cafe\u0301s", 5, "cafe\u0301s"},
		{"cafe\u0301s!", 5, "cafe\u0301…"},
		{"🚀🚀🚀", 5, "🚀🚀…"},
	} {
		got := shorten(tt.text, tt.most)
		if got != tt.want {
			t.Errorf("shorten(%q, %d) = %q, want %q", tt.text, tt.most, got, tt.want)
		}
		if n := columns(got); n > tt.most {
			t.Errorf("shorten(%q, %d) = %q takes %d columns", tt.text, tt.most, got, n)
		}
	}
}
