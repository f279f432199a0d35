package main

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/hookferry/analytics/webhook"
)

func TestServeFlags(t *testing.T) {
	one := func(urls ...string) []webhook.Destination {
		d := webhook.Destination{ID: destinationID}
		for _, u := range urls {
			d.Endpoints = append(d.Endpoints, webhook.Endpoint{URL: u})
		}
		return []webhook.Destination{d}
	}
	for _, tt := range []struct {
		name string
		args []string
		env  map[string]string
		want settings
	}{
		{
			name: "defaults",
			args: []string{"-webhook", "http://a.example"},
			want: settings{listen: ":8080", data: "hookferry-data", grace: 10 * time.Second,
				webhook: webhook.Config{ServiceName: "Hookferry", Destinations: one("http://a.example")}},
		},
		{
			name: "all from the environment",
			env: map[string]string{
				"HOOKFERRY_LISTEN": "localhost:1", "HOOKFERRY_DATA": "d", "HOOKFERRY_WRITE_KEY": "k", "HOOKFERRY_GRACE": "2s",
				"HOOKFERRY_WEBHOOK": " http://a.example\thttp://b.example\n", "HOOKFERRY_SECRET": "s", "HOOKFERRY_NAME": "N",
				"HOOKFERRY_HEADER": "A: one, two\r\nB:3\n", "HOOKFERRY_ALLOW": "10.0.0.0/8 fd00::1",
			},
			want: settings{listen: "localhost:1", data: "d", writeKey: "k", grace: 2 * time.Second,
				webhook: webhook.Config{
					ServiceName: "N",
					Destinations: []webhook.Destination{{ID: destinationID, Secret: "s", Endpoints: []webhook.Endpoint{
						{URL: "http://a.example", Headers: map[string]string{"A": "one, two", "B": "3"}},
						{URL: "http://b.example", Headers: map[string]string{"A": "one, two", "B": "3"}},
					}}},
					AllowAddresses: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::1/128")},
				}},
		},
		{
			name: "a flag wins, also where it may be repeated",
			args: []string{"-webhook", "http://c.example", "-listen", ":2", "-grace", "3s"},
			env: map[string]string{
				"HOOKFERRY_LISTEN": "localhost:1", "HOOKFERRY_GRACE": "nonsense",
				"HOOKFERRY_WEBHOOK": "http://a.example http://b.example",
			},
			want: settings{listen: ":2", data: "hookferry-data", grace: 3 * time.Second,
				webhook: webhook.Config{ServiceName: "Hookferry", Destinations: one("http://c.example")}},
		},
		{
			name: "an empty variable is not set",
			args: []string{"-webhook", "http://a.example"},
			env:  map[string]string{"HOOKFERRY_LISTEN": "", "HOOKFERRY_HEADER": ""},
			want: settings{listen: ":8080", data: "hookferry-data", grace: 10 * time.Second,
				webhook: webhook.Config{ServiceName: "Hookferry", Destinations: one("http://a.example")}},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := newOptions("serve", serveHelp)
			read := serveFlags(o)
			if _, err := o.parse(tt.args, process{getenv: func(name string) string { return tt.env[name] }}); err != nil {
				t.Fatalf("parse(%q): %v", tt.args, err)
			}
			got, err := read()
			if err != nil {
				t.Fatalf("settings of %q: %v", tt.args, err)
			}
			if diff := cmp.Diff(&tt.want, got, cmp.AllowUnexported(settings{}), cmpopts.EquateEmpty(), cmpopts.EquateComparable(netip.Prefix{}),
				cmpopts.IgnoreFields(settings{}, "log")); diff != "" {
				t.Errorf("settings of %q (-want +got):\n%s", tt.args, diff)
			}
		})
	}
}
