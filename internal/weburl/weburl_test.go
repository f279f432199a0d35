package weburl

import (
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	for _, tt := range []struct{ name, in, want string }{
		{"ASCII", "https://u:p@Crm.example:8443/a%20b?q=%20#f", "https://u:p@Crm.example:8443/a%20b?q=%20#f"},
		{"capital", "https://Österreich.test:8443/Ö", "https://xn--sterreich-z7a.test:8443/%C3%96"},
		{"full width and full stop", "http://ｂüｃｈｅｒ。example/", "http://xn--bcher-kva.example/"},
		{"percent-encoded", "http://M%C3%9Cnchen.example/", "http://xn--mnchen-3ya.example/"},
		{"sharp s", "http://faß.example/", "http://xn--fa-hia.example/"},
		{"decomposed", "http://bu\u0308cher.example/", "http://xn--bcher-kva.example/"},
		{"joiner that the script needs", "http://क्\u200cष.example/", "http://xn--11b2ezcs70k.example/"},
		{"digits", "http://１２７.０.０.１/", "http://127.0.0.1/"},
		{"ligature", "http://localhoﬆ/", "http://localhost/"},
		{"zone", "http://[fe80::1%25eth0]/", "http://[fe80::1%25eth0]/"},
	} {
		u, err := Parse(tt.in)
		if err != nil || u.String() != tt.want {
			t.Errorf("%s: Parse(%q) = %v, %v; want %s", tt.name, tt.in, u, err, tt.want)
		}
	}
}

func TestParseRefusesWhatCannotBeSeen(t *testing.T) {
	for _, c := range []string{" ", "\t", "\n", "\r\n", "\x00", "\x7f", "\u0085", "\u00a0", "\u00ad", "\u034f", "\u200b", "\u200c", "\u200d",
		"\u200e", "\u2028", "\u202e", "\u2060", "\u2800", "\u3000", "\u3164", "\ufe0f", "\ufeff", "\U000e0041"} {
		for _, s := range []string{c + "http://crm.example/hook", "http://crm.example" + c, "http://crm.example/hook" + c, "http://crm.example/?a=b" + c, "http://crm.example/#a" + c} {
			if u, err := Parse(s); err == nil {
				t.Errorf("Parse(%q) = %v, nil; want an error", s, u)
			}
		}
	}
	for _, s := range []string{"http://secret:pa ss@crm.example/", "http://secret:pass\n@crm.example/", "http://secret@a\u0301.\u0301/", "http://secret@xn--a.ü\u00b7/", "http://secret@a_ü.example/", "http://secret@%zz/"} {
		if u, err := Parse(s); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("Parse(%q) = %v, %v; want an error without a part of the URL", s, u, err)
		}
	}
}
