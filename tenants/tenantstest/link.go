package tenantstest

import (
	"encoding/base64"
	"strings"
	"time"

	"github.com/hookferry/analytics/tenants"
)

func links(k *kit) {
	k.tenant("link")
	k.tenant("link2")
	made, secret, err := k.a.CreateLink(k.ctx, "link", "ann", time.Hour)
	k.fine(err)
	text := secret.Reveal()
	got, err := k.b.CheckLink(k.ctx, text)
	k.fine(err)
	equal(k, "CheckLink", got, made)
	if left := time.Until(got.Ends); got.Tenant != "link" || got.Actor != "ann" || left < 59*time.Minute || left > time.Hour {
		k.Errorf("the link is %+v, want one of ann for an hour", got)
	}
	_, other, err := k.b.CreateLink(k.ctx, "link2", "ann", time.Hour)
	k.fine(err)
	_, _, err = k.b.CreateLink(k.ctx, "nobody", "ann", time.Hour)
	k.want("CreateLink of an unknown tenant", err, tenants.ErrUnknown)
	for _, lasts := range []time.Duration{0, -time.Hour, tenants.MaxLinkTime + 1} {
		if _, _, err := k.a.CreateLink(k.ctx, "link", "ann", lasts); err == nil {
			k.Errorf("a link for %v was made", lasts)
		}
	}

	// What the text says cannot be changed, nor signed with the key of another tenant.
	signed, sum, _ := strings.Cut(text, ".")
	_, otherSum, _ := strings.Cut(other.Reveal(), ".")
	what, err := base64.RawURLEncoding.DecodeString(strings.TrimPrefix(signed, "hfl_"))
	k.fine(err)
	forged := func(from, to string) string {
		return "hfl_" + base64.RawURLEncoding.EncodeToString([]byte(strings.Replace(string(what), from, to, 1)))
	}
	for _, wrong := range []string{
		"", "hfl_", "hfl_.", text[:len(text)-1], text + "A", strings.TrimPrefix(text, "hfl_"), signed + ".", signed + "." + otherSum, "hft_x_" + text,
		forged(`"link"`, `"link2"`) + "." + sum, forged(`"ann"`, `"bob"`) + "." + sum,
		forged(`"20`, `"21`) + "." + sum, forged(`"link"`, `"nobody"`) + "." + sum, forged(`"link"`, `"a/b"`) + "." + sum, forged("{", "") + "." + sum,
	} {
		_, err := k.b.CheckLink(k.ctx, wrong)
		k.want("CheckLink of "+wrong, err, tenants.ErrUnknown)
	}

	k.fine(k.b.RevokeLinks(k.ctx, "link", "bob"))
	k.fine(k.b.RevokeLinks(k.ctx, "link", "bob"))
	k.want("RevokeLinks of an unknown tenant", k.b.RevokeLinks(k.ctx, "nobody", "bob"), tenants.ErrUnknown)
	_, err = k.a.CheckLink(k.ctx, text)
	k.want("CheckLink after RevokeLinks", err, tenants.ErrUnknown)
	_, secret, err = k.a.CreateLink(k.ctx, "link", "ann", time.Hour)
	k.fine(err)
	_, err = k.a.CheckLink(k.ctx, text)
	k.want("CheckLink of one from before RevokeLinks", err, tenants.ErrUnknown)
	_, err = k.b.CheckLink(k.ctx, other.Reveal())
	k.fine(err)
	k.fine(k.a.DeleteTenant(k.ctx, "link", "ann"))
	k.tenant("link")
	_, err = k.b.CheckLink(k.ctx, secret.Reveal())
	k.want("CheckLink after DeleteTenant", err, tenants.ErrUnknown)
	k.fine(k.a.DeleteTenant(k.ctx, "link", "ann"))
	k.fine(k.a.DeleteTenant(k.ctx, "link2", "ann"))
}
