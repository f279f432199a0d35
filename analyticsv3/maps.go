package analytics

import "time"

// Properties describe an event, a page or a screen. A value may have any type that
// encoding/json encodes. Each setter of a common property returns the map.
type Properties map[string]any

// NewProperties returns an empty map.
func NewProperties() Properties { return make(Properties, 10) }

// Set sets any property.
func (p Properties) Set(name string, value any) Properties {
	p[name] = value
	return p
}

// The setters of common properties. The key that a setter sets is its name without "Set" and with a
// lower-case first letter. Where the key differs from that, a comment gives the key.

func (p Properties) SetCategory(category string) Properties     { return p.Set("category", category) }
func (p Properties) SetCoupon(coupon string) Properties         { return p.Set("coupon", coupon) }
func (p Properties) SetCurrency(currency string) Properties     { return p.Set("currency", currency) }
func (p Properties) SetDiscount(discount float64) Properties    { return p.Set("discount", discount) }
func (p Properties) SetName(name string) Properties             { return p.Set("name", name) }
func (p Properties) SetOrderId(id string) Properties            { return p.Set("orderId", id) }
func (p Properties) SetPath(path string) Properties             { return p.Set("path", path) }
func (p Properties) SetPrice(price float64) Properties          { return p.Set("price", price) }
func (p Properties) SetProductId(id string) Properties          { return p.Set("id", id) } // "id"
func (p Properties) SetProducts(products ...Product) Properties { return p.Set("products", products) }
func (p Properties) SetReferrer(referrer string) Properties     { return p.Set("referrer", referrer) }
func (p Properties) SetRepeat(repeat bool) Properties           { return p.Set("repeat", repeat) }
func (p Properties) SetRevenue(revenue float64) Properties      { return p.Set("revenue", revenue) }
func (p Properties) SetSKU(sku string) Properties               { return p.Set("sku", sku) } // "sku"
func (p Properties) SetShipping(shipping float64) Properties    { return p.Set("shipping", shipping) }
func (p Properties) SetSubtotal(subtotal float64) Properties    { return p.Set("subtotal", subtotal) }
func (p Properties) SetTax(tax float64) Properties              { return p.Set("tax", tax) }
func (p Properties) SetTitle(title string) Properties           { return p.Set("title", title) }
func (p Properties) SetTotal(total float64) Properties          { return p.Set("total", total) }
func (p Properties) SetURL(url string) Properties               { return p.Set("url", url) } // "url"
func (p Properties) SetValue(value float64) Properties          { return p.Set("value", value) }

// A Product is one of the products of an order. Its SKU is sent as "sky", as v3.3.0 does,
// so that receivers still find it.
type Product struct {
	ID    string  `json:"id,omitempty"`
	SKU   string  `json:"sky,omitempty"`
	Name  string  `json:"name,omitempty"`
	Price float64 `json:"price"`
}

// Traits describe a user or a group. A value may have any type that encoding/json encodes.
// Each setter of a common trait returns the map.
type Traits map[string]any

// NewTraits returns an empty map.
func NewTraits() Traits { return make(Traits, 10) }

// Set sets any trait.
func (t Traits) Set(field string, value any) Traits {
	t[field] = value
	return t
}

// The setters of common traits. The key that a setter sets is its name without "Set"
// and with a lower-case first letter.

func (t Traits) SetAddress(address string) Traits     { return t.Set("address", address) }
func (t Traits) SetAge(age int) Traits                { return t.Set("age", age) }
func (t Traits) SetAvatar(url string) Traits          { return t.Set("avatar", url) }
func (t Traits) SetBirthday(date time.Time) Traits    { return t.Set("birthday", date) }
func (t Traits) SetCreatedAt(date time.Time) Traits   { return t.Set("createdAt", date) }
func (t Traits) SetDescription(desc string) Traits    { return t.Set("description", desc) }
func (t Traits) SetEmail(email string) Traits         { return t.Set("email", email) }
func (t Traits) SetFirstName(firstName string) Traits { return t.Set("firstName", firstName) }
func (t Traits) SetGender(gender string) Traits       { return t.Set("gender", gender) }
func (t Traits) SetLastName(lastName string) Traits   { return t.Set("lastName", lastName) }
func (t Traits) SetName(name string) Traits           { return t.Set("name", name) }
func (t Traits) SetPhone(phone string) Traits         { return t.Set("phone", phone) }
func (t Traits) SetTitle(title string) Traits         { return t.Set("title", title) }
func (t Traits) SetUsername(username string) Traits   { return t.Set("username", username) }
func (t Traits) SetWebsite(url string) Traits         { return t.Set("website", url) }

// Integrations are destination switches. The value false disables a destination. Any other
// value enables it.
type Integrations map[string]any

// NewIntegrations returns an empty map.
func NewIntegrations() Integrations { return make(Integrations, 10) }

// EnableAll enables the destinations without a switch of their own. It sets the key "All",
// as collectors expect. v3.3.0 sets the key "all", which collectors ignore.
func (i Integrations) EnableAll() Integrations { return i.Enable("All") }

// DisableAll disables the destinations without a switch of their own; see EnableAll.
func (i Integrations) DisableAll() Integrations { return i.Disable("All") }

// Enable enables a destination.
func (i Integrations) Enable(name string) Integrations { return i.Set(name, true) }

// Disable disables a destination.
func (i Integrations) Disable(name string) Integrations { return i.Set(name, false) }

// Set sets the switch of a destination, for instance to an object of options.
func (i Integrations) Set(name string, value any) Integrations {
	i[name] = value
	return i
}
