package receivertest

import (
	"crypto/rand"
	"strconv"
	"strings"
	"time"

	"github.com/hookferry/analytics/signature"
)

var signatureChecks = []Check{
	{"a signed event is accepted", true, 0, func(k *kit) {
		k.accept("a signed event", k.event())
	}},
	{"each secret is accepted while one replaces another", true, secrets, func(k *kit) {
		for i, s := range k.Secrets {
			k.accept("an event signed with secret "+strconv.Itoa(i+1), k.event().with(func(r *request) { r.by = []signature.Secret{s} }))
		}
	}},
	{"an event without a signature is refused", false, 0, func(k *kit) {
		for _, name := range k.headers() {
			k.refuse("an event without "+name, k.event().headed(name, ""))
		}
	}},
	{"a malformed signature is refused", false, 0, func(k *kit) {
		name := k.headers()[0]
		for _, value := range []string{"v1,", "v1", "nonsense", strings.Repeat("0", 40), "v1," + strings.Repeat("A", 43) + "=", "v2,AAAA", "\u00ff"} {
			k.refuse("an event with the "+name+" "+strconv.Quote(value), k.event().headed(name, value))
		}
	}},
	{"a signature with another secret is refused", false, 0, func(k *kit) {
		k.refuse("an event signed with another secret", k.event().with(func(r *request) { r.by = k.otherSecrets() }))
	}},
	{"a signature of another body is refused", false, 0, func(k *kit) {
		r := k.event()
		for _, change := range []struct{ what, body string }{
			{"another event", string(k.Event(newID()))},
			{"an event with a field more", strings.TrimSuffix(r.body, "}") + `,"admin":true}`},
			{"an event without its last byte", r.body[:len(r.body)-1]},
			{"an event with another event behind it", r.body + r.body},
			{"an empty body", ""},
		} {
			k.refuse(change.what+" with a signature that was good", r.replaced(change.body))
		}
	}},
	{"a signature of another id or time is refused", false, standard, func(k *kit) {
		r := k.event()
		k.refuse("an event with another id", r.headed(signature.StandardID, newID()))
		k.refuse("an event with another time", r.headed(signature.StandardTimestamp, strconv.FormatInt(r.at.Unix()-1, 10)))
		k.refuse("an event with a time that is not a number", r.headed(signature.StandardTimestamp, "now"))
	}},
	{"an event that was signed too long ago is refused", false, standard, func(k *kit) {
		k.refuse("an event that somebody captured and sends again later", k.signedAt(-2*k.Tolerance))
	}},
	{"an event that was signed in the future is refused", false, standard, func(k *kit) {
		k.refuse("an event from the future", k.signedAt(2*k.Tolerance))
	}},
	{"an event whose sender's clock is a little wrong is accepted", true, standard, func(k *kit) {
		k.accept("an event from a clock that is late", k.signedAt(-k.Tolerance*4/5))
		k.accept("an event from a clock that is ahead", k.signedAt(k.Tolerance*4/5))
	}},
	{"one good signature among several is enough", true, standard, func(k *kit) {
		for i, by := range [][]signature.Secret{append(k.otherSecrets(), k.Secrets[0]), append(k.Secrets[:1:1], k.otherSecrets()...)} {
			k.accept("an event of a sender that changes its secret, whose signature "+strconv.Itoa(2-i)+" is good",
				k.event().with(func(r *request) { r.by = by }))
		}
		r := k.event()
		signed, _ := signature.SignStandard([]byte(r.body), r.id, r.at, r.by...) // as Check.Run has tried
		k.accept("an event with a signature of a later version, too", r.headed(signature.StandardSignature, "v9,AAAA "+signed))
	}},
}

// headers returns the names of the headers of the scheme, beginning with that of the signature.
func (k *kit) headers() []string {
	if k.Scheme == signature.XSignature {
		return []string{signature.Header}
	}
	return []string{signature.StandardSignature, signature.StandardID, signature.StandardTimestamp}
}

// otherSecrets returns one secret that the receiver does not have.
func (k *kit) otherSecrets() []signature.Secret {
	if k.Scheme == signature.XSignature {
		return []signature.Secret{signature.Secret(rand.Text())}
	}
	return []signature.Secret{signature.NewStandardSecret()}
}

func (k *kit) signedAt(since time.Duration) *request {
	return k.event().with(func(r *request) { r.at = r.at.Add(since) })
}
