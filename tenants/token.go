package tenants

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/hookferry/analytics/check"
	"github.com/hookferry/analytics/signature"
)

const (
	maxTokens    = 20 // of a tenant
	maxTokenName = 64 // bytes of a token's name
	tokenPrefix  = "hft_"
	tokenFolder  = "tenant-token" // then a slash and the tenant's id: a document for each token, under its name
)

// A Token lets everybody who has it act for one tenant. The program decides what a token permits.
type Token struct {
	Name    string    `json:"name"` // 1 to 64 letters, digits and hyphens, different for each token of a tenant
	Created time.Time `json:"created"`
	By      string    `json:"by,omitempty"` // who made it
}

// A tokenRecord is the document of a token. It has only a digest of the token, so that nobody who
// reads the store can use the token.
type tokenRecord struct {
	Token  Token  `json:"token"`
	Digest []byte `json:"digest"` // SHA-256 of the text
}

// CreateToken makes a token of a tenant: "hft_", its name, "_" and 130 random bits. Its text is returned
// only here. Errors are a *webhook.ConfigError, ErrUnknown for the tenant, ErrConflict if the tenant has
// a token of this name, and ErrTooMany if it has 20.
func (d *Directory) CreateToken(ctx context.Context, tenant, name, by string) (Token, signature.Secret, error) {
	var wrong check.Faults
	wrong.Refuse(!isTokenName(name), "Name", "is not 1 to %d letters, digits and hyphens", maxTokenName)
	checkText(&wrong, "by", by)
	if err := refused(wrong); err != nil {
		return Token{}, "", err
	}
	if err := d.taken(ctx, tenant); err != nil {
		return Token{}, "", err
	}
	if err := d.room(ctx, tokensOf(tenant), 1, maxTokens); err != nil {
		return Token{}, "", err
	}
	text := tokenPrefix + name + "_" + rand.Text()
	digest := sha256.Sum256([]byte(text))
	made := Token{Name: name, Created: time.Now().UTC().Truncate(time.Microsecond), By: by}
	version, err := d.set(ctx, tokensOf(tenant), name, 0, tokenRecord{made, digest[:]})
	if err == nil {
		err = d.undo(ctx, d.taken(ctx, tenant), tokensOf(tenant), name, version)
	}
	if err != nil {
		return Token{}, "", err
	}
	return made, signature.Secret(text), nil
}

// IsToken reports whether a text begins as tokens do.
func IsToken(text string) bool { return strings.HasPrefix(text, tokenPrefix) }

// CheckToken returns the token of a tenant that has this text. ErrUnknown says that the tenant has
// no such token, or that there is no such tenant. CheckToken reads one document, so a token that
// was revoked is refused at once.
func (d *Directory) CheckToken(ctx context.Context, tenant, text string) (Token, error) {
	rest, ours := strings.CutPrefix(text, tokenPrefix)
	name, _, _ := strings.Cut(rest, "_")
	if !ours || !isTokenName(name) || tenantProblem(tenant) != "" {
		return Token{}, ErrUnknown
	}
	held, err := d.reader.Document(ctx, tokensOf(tenant), name)
	var r tokenRecord
	if err = get(held, err, &r); err != nil {
		return Token{}, err
	}
	digest := sha256.Sum256([]byte(text))
	if subtle.ConstantTimeCompare(digest[:], r.Digest) != 1 {
		return Token{}, ErrUnknown
	}
	return r.Token, nil
}

// Tokens yields the tokens of a tenant whose names are greater than after, in the order of their names.
func (d *Directory) Tokens(ctx context.Context, tenant, after string) iter.Seq2[Token, error] {
	return func(yield func(Token, error) bool) {
		if tenantProblem(tenant) != "" {
			return
		}
		for held, err := range d.reader.Documents(ctx, tokensOf(tenant), after) {
			var r tokenRecord
			if err = get(held, err, &r); !yield(r.Token, err) {
				return
			}
		}
	}
}

// RevokeToken removes the token of a tenant with this name, or returns ErrUnknown.
func (d *Directory) RevokeToken(ctx context.Context, tenant, name, by string) error {
	if tenantProblem(tenant) != "" || !isTokenName(name) {
		return ErrUnknown
	}
	held, err := d.reader.Document(ctx, tokensOf(tenant), name)
	if err = get(held, err, new(tokenRecord)); err != nil {
		return err
	}
	if _, err = d.set(ctx, held.Folder, held.Name, held.Version, nil); err == nil {
		d.config.Logger.Info("tenants: a token was revoked", "tenant", tenant, "token", name, "by", by)
	}
	return err
}

func tokensOf(tenant string) string { return tokenFolder + "/" + tenant }

func isTokenName(name string) bool {
	odd := func(c rune) bool {
		return !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-')
	}
	return name != "" && len(name) <= maxTokenName && !strings.ContainsFunc(name, odd)
}

// undo removes a document if err, which says why it must not be there, is not nil. It returns err.
func (d *Directory) undo(ctx context.Context, err error, folder, name string, version uint64) error {
	if err == nil {
		return nil
	}
	if _, undone := d.set(ctx, folder, name, version, nil); undone != nil {
		return fmt.Errorf("%w, and what was begun could not be undone: %w", err, undone)
	}
	return err
}

// clear removes all documents of a folder.
func (d *Directory) clear(ctx context.Context, folder string) error {
	for held, err := range d.store.Documents(ctx, folder, "") {
		if err == nil {
			_, err = d.set(ctx, held.Folder, held.Name, held.Version, nil)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// room returns ErrTooMany if a folder, with more documents added, has more than most.
func (d *Directory) room(ctx context.Context, folder string, more, most int) error {
	for _, err := range d.store.Documents(ctx, folder, "") {
		if err != nil {
			return err
		}
		if more++; more > most {
			return fmt.Errorf("%w: the limit is %d", ErrTooMany, most)
		}
	}
	return nil
}
