// The page at a link of a tenant: it changes the fragment, which no server is sent, into a cookie.
const text = document.getElementById('text')
fetch('session', { method: 'POST', body: location.hash.slice(1) }).then(({ ok, status }) => {
  if (ok) location.replace('./')
  else text.textContent = status === 401 ? 'This link has ended. Ask for a new one.' : 'The page cannot be opened at the moment. Try again later.'
}, () => { text.textContent = 'The server cannot be reached. Try again later.' })
