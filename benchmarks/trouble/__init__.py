"""Parts of the chaos campaign: what is asked, who strikes, what is left behind, what is reported."""
