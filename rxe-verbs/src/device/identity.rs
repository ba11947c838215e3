//! An assumed identity for programs that require the names of a certain adapter (`rxe run --as
//! mlx5`): a name and a PCI address. Nothing else of a device changes.

/// The adapters whose names devices can assume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Identity {
    /// NVIDIA's ConnectX adapters: `mlx5_0`, `mlx5_1`, …
    Mlx5,
}

impl Identity {
    /// All identities.
    pub const ALL: [Self; 1] = [Self::Mlx5];

    /// The PCI domain of these devices, too high to be used by a host.
    pub const PCI_DOMAIN: &str = "7278";

    /// Returns the name of the driver.
    pub fn name(self) -> &'static str {
        match self {
            Self::Mlx5 => "mlx5",
        }
    }

    /// Returns the name of a device, by its index in the list.
    pub fn device(self, number: usize) -> String {
        format!("{}_{number}", self.name())
    }

    /// Returns the PCI address of a device, by its index in the list.
    pub fn pci_address(self, number: usize) -> String {
        // Each device gets its own bus while there are buses. A bus has up to 32 devices.
        let (bus, slot) = (number % 255 + 1, number / 255 % 32);
        format!("{}:{bus:02x}:{slot:02x}.0", Self::PCI_DOMAIN)
    }

    /// Returns the PCI vendor ID and device ID: a ConnectX-5.
    pub fn pci_ids(self) -> (u16, u16) {
        match self {
            Self::Mlx5 => (0x15b3, 0x1017),
        }
    }
}
