package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func TestParseTakesFlagsAndArgumentsInAnyOrder(t *testing.T) {
	for _, tt := range []struct {
		name string
		args []string
		want []string
		to   string
	}{
		{name: "nothing"},
		{name: "flag first", args: []string{"-to", "x", "a", "b"}, want: []string{"a", "b"}, to: "x"},
		{name: "flag last", args: []string{"a", "b", "-to", "x"}, want: []string{"a", "b"}, to: "x"},
		{name: "flag between", args: []string{"a", "-to=x", "b"}, want: []string{"a", "b"}, to: "x"},
		{name: "arguments that look like flags", args: []string{"a", "-to", "x", "--", "-b", "--", "c"}, want: []string{"a", "-b", "--", "c"}, to: "x"},
		{name: "a lone hyphen", args: []string{"-", "-to", "x"}, want: []string{"-"}, to: "x"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := newOptions("test", "")
			to := o.text("to", "", "")
			got, err := o.parse(tt.args, process{getenv: func(string) string { return "" }})
			if err != nil {
				t.Fatalf("parse(%q): %v", tt.args, err)
			}
			if diff := cmp.Diff(tt.want, got, cmpopts.EquateEmpty()); diff != "" || *to != tt.to {
				t.Errorf("parse(%q): arguments (-want +got):\n%s-to %q, want %q", tt.args, diff, *to, tt.to)
			}
		})
	}
}
